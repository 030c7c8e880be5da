; What is put is summed: each rank puts its tile to all others, then adds up.
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
    put %0 in %parts to (rank + %"put.hop") % world for 1..world @35:23
    %2 = total %parts own %0             @37:33
    store %c, %2                         @37:15
  }
}
