; Flags that do not grow with the launch: the second sees those of the first.
program @shift for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[M, K] in @7:3
  buffer %b : bf16[N, K] in @8:3
  buffer %c : bf16[M, N] out @9:3
  buffer %x : bf16[2][M, K] symmetric @10:3
  signal %got[1] device
  signal %free[1] host
  table %tiles[%T] order row_major (%tm, %tn) -> (0, 1)
  %e0 = acc 0 @14:3
  agent push on copy_engine {
    wait %free[0] >= epoch - 2 scope sys @16:5
    copy peer((rank + 1) % world).%x{epoch % 2}[0..M, 0..K] <- %a[0..M, 0..K] @17:5
    signal peer((rank + 1) % world).%got[0] = 1 scope sys after performed @18:5 ; error[signal-not-monotone]: rank 0, the copy engine of `push` sets `%got[0]` of rank 0 to 1 when it is 1
  }
  agent gemm on ctas {
    for %t in cta..%T step ctas { @21:5
      row (%m, %n, %first, %last) = %tiles[%t] @22:7
      let %m0 = %m * 8 @23:7
      let %m1 = min(%m0 + 8, M) @24:7
      let %n0 = %n * 8 @25:7
      let %n1 = min(%n0 + 8, N) @26:7
      wait %got[0] >= 1 scope sys @27:7
      fence proxy.async @28:7
      mainloop %x{epoch % 2}[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @29:7
      store %c[%m0..%m1, %n0..%n1] <- %e0 @30:7
    }
  } exit {
    signal peer((rank + world - 1) % world).%free[0] = epoch scope sys after performed @33:5
  }
}
