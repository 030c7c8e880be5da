; A tile is put to one workspace, and another one is summed.
kernel @low_latency(
  %a: &global<bf16> @26:9,
  %b: &global<bf16> @27:9,
  %c: &mut global<bf16> @29:9
) {                                      @25:12
  protocol {
    buffer %parts : bf16[world][M, N] symmetric @31:21
    buffer %other : bf16[world][M, N] symmetric @30:21
  }
  for tile in %c {                       @32:9
    %0 = gemm %a, %b.t                   @33:24
    put %0 in %parts to (rank + %"put.hop") % world for 1..world @35:23 ; error[types]: the tile is put to `parts`, and `other` is summed
    %2 = total %other own %0             @37:33
    store %c, %2                         @37:15
  }
}
