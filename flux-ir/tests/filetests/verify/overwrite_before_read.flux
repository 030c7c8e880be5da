; A buffer is filled again before its tiles are through.
program @twice for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[M, K] in @7:3
  buffer %b : bf16[N, K] in @8:3
  buffer %c : bf16[M, N] out @9:3
  buffer %d : bf16[M, N] out @10:3
  buffer %x : bf16[M, K] symmetric @11:3
  signal %filled[1] device
  signal %used[1] host
  table %tiles[%T] order row_major (%tm, %tn) -> (0, 1)
  %e0 = acc 0 @15:3
  agent fill on copy_engine {
    copy %x[0..M, 0..K] <- %a[0..M, 0..K] @17:5
    signal %filled[0] = 2 * epoch - 1 scope sys after performed @18:5
    wait %used[0] >= ctas * epoch - ctas scope sys @19:5
    copy %x[0..M, 0..K] <- %a[0..M, 0..K] @20:5 ; error[overwrite-before-read]: rank 0, the copy engine of `fill` writes rows 0..1, columns 0..1 of `%x` on rank 0, which rank 0, cta 0 of `gemm` may not have read yet in launch 1
    signal %filled[0] = 2 * epoch scope sys after performed @21:5
  }
  agent gemm on ctas {
    wait %filled[0] >= 2 * epoch - 1 scope sys @24:5
    fence proxy.async @25:5
    for %t in cta..%T step ctas { @26:5
      row (%m, %n, %first, %last) = %tiles[%t] @27:7
      let %m0 = %m * 8 @28:7
      let %m1 = min(%m0 + 8, M) @29:7
      let %n0 = %n * 8 @30:7
      let %n1 = min(%n0 + 8, N) @31:7
      mainloop %x[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @32:7
      store %c[%m0..%m1, %n0..%n1] <- %e0 @33:7
    }
    signal %used[0] += 1 scope sys after performed @35:5
    wait %filled[0] >= 2 * epoch scope sys @36:5
    fence proxy.async @37:5
    for %t in cta..%T step ctas { @38:5
      row (%m, %n, %first, %last) = %tiles[%t] @39:7
      let %m0 = %m * 8 @40:7
      let %m1 = min(%m0 + 8, M) @41:7
      let %n0 = %n * 8 @42:7
      let %n1 = min(%n0 + 8, N) @43:7
      mainloop %x[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @44:7
      store %d[%m0..%m1, %n0..%n1] <- %e0 @45:7
    }
  }
}
