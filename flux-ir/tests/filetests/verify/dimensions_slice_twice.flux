; The second slice begins where the first does.
program @fill for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[M, K] in @7:3
  buffer %b : bf16[N, K] in @8:3
  buffer %c : bf16[M, N] out @9:3
  buffer %x : bf16[M, K] symmetric @10:3
  signal %filled[3] device
  table %tiles[%T] order row_major (%tm, %tn) -> (0, 1)
  %e0 = acc 0 @13:3
  agent fill on copy_engine {
    for %h in 0..2 {
      copy %x[0..M, %h * 8..min(%h * 8 + 8, K)] <- %a[0..M, %h * 8..min(%h * 8 + 8, K)] @15:5
      signal %filled[%h] = epoch scope sys after performed @16:5
    }
    copy %x[0..M, 16..K] <- %a[0..M, 16..K] @17:5
    signal %filled[2] = epoch scope sys after performed @18:5
  }
  agent gemm on ctas {
    for %t in cta..%T step ctas { @19:5
      row (%m, %n, %first, %last) = %tiles[%t] @20:7
      let %m0 = %m * 8 @21:7
      let %m1 = min(%m0 + 8, M) @22:7
      let %n0 = %n * 8 @23:7
      let %n1 = min(%n0 + 8, N) @24:7
      for %s in 0..3 {
        let %k0 = min(%s / 2 * 8, K)
        let %k1 = max(min(%s * 8 + 8, K), %s / 2 * K)
        wait %filled[%s] >= epoch scope sys @25:9
        fence proxy.async @26:9
        mainloop %x[%m0..%m1, %k0..%k1] * %b[%n0..%n1, %k0..%k1]^T @27:9 ; error[dimensions]: rank 0, cta 0 of `gemm` reduces columns 0..9 of 9 behind 8 that end at 8, expected slices that follow each other, once around, and end at a multiple of 8 or at 9
      }
      store %c[%m0..%m1, %n0..%n1] <- %e0 @28:7
    }
  }
}
