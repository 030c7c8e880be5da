; A sum over what nobody puts.
kernel @low_latency(
  %a: &global<bf16> @26:9,
  %b: &global<bf16> @27:9,
  %c: &mut global<bf16> @29:9
) {                                      @25:12
  protocol {
    buffer %parts : bf16[world][M, N] symmetric @31:21
  }
  for tile in %c {                       @32:9
    %0 = gemm %a, %b.t                   @33:24
    %1 = total %parts own %0             @37:33 ; error[wait-without-signal]: nothing is put to `parts`, and the sum waits for all of it
    store %c, %1                         @37:15
  }
}
