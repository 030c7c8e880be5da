; A product over the first element of the reduction alone.
program @fill for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[M, K] in @7:3
  buffer %b : bf16[N, K] in @8:3
  buffer %c : bf16[M, N] out @9:3
  buffer %x : bf16[M, K] symmetric @10:3
  signal %filled[1] device
  table %tiles[%T] order row_major (%tm, %tn) -> (0, 1)
  %e0 = acc 0 @13:3
  agent fill on copy_engine {
    copy %x[0..M, 0..K] <- %a[0..M, 0..K] @15:5
    signal %filled[0] = epoch scope sys after performed @16:5
  }
  agent gemm on ctas {
    for %t in cta..%T step ctas { @19:5
      row (%m, %n, %first, %last) = %tiles[%t] @20:7
      let %m0 = %m * 8 @21:7
      let %m1 = min(%m0 + 8, M) @22:7
      let %n0 = %n * 8 @23:7
      let %n1 = min(%n0 + 8, N) @24:7
      wait %filled[0] >= epoch scope sys @25:7
      fence proxy.async @26:7
      mainloop %x[%m0..%m1, 0..1] * %b[%n0..%n1, 0..1]^T @27:7 ; error[dimensions]: rank 0, cta 0 of `gemm` reduces columns 0..1 of 9 behind 0 that end at 0, expected slices that follow each other, once around, and end at a multiple of 8 or at 9
      store %c[%m0..%m1, %n0..%n1] <- %e0 @28:7
    }
  }
}
