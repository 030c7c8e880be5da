; Every rank waits in its sum for what the others put behind theirs.
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
    %1 = total %parts own %0             @34:33
    put %0 in %parts to (rank + %"put.hop") % world for 1..world @35:23 ; error[deadlock]: the tile is put behind the sum, which waits for what the other ranks put there
    store %c, %1                         @37:15
  }
}
