; A peer's signal of the last launch has come, so the peer has summed what it was put the launch before.
program @sum for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[M, K] in @7:3
  buffer %b : bf16[N, K] in @8:3
  buffer %c : bf16[M, N] out @9:3
  buffer %x : bf16[2, world][M, N] symmetric @10:3
  signal %landed[world * %T] device
  signal %free[world] device
  table %tiles[%T] order row_major (%tm, %tn) -> (0, 0)
  %e0 = acc 0 @14:3
  %e1 = sum @15:3
  agent gemm on ctas {
    for %t in cta..%T step ctas { @18:5
      row (%m, %n, %first, %last) = %tiles[%t] @19:7
      let %m0 = %m * 8 @20:7
      let %m1 = min(%m0 + 8, M) @21:7
      let %n0 = %n * 8 @22:7
      let %n1 = min(%n0 + 8, N) @23:7
      mainloop %a[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @24:7
      for %h in 1..world { @25:7
        let %p = (rank + %h) % world @26:9
        store peer(%p).%x{epoch % 2, rank}[%m0..%m1, %n0..%n1] <- %e0 @27:9
        signal peer(%p).%landed[rank * %T + %t] = epoch scope sys after performed @28:9
      }
      for %h in 1..world { @30:7
        wait %landed[(rank + %h) % world * %T + %t] >= epoch scope sys @31:9
      }
      sum %i own %e0 from %x{epoch % 2, %i}[%m0..%m1, %n0..%n1] @33:7
      store %c[%m0..%m1, %n0..%n1] <- %e1 @34:7
    }
  } exit {
    for %p in 0..world { @37:5
      signal peer(%p).%free[rank] = epoch scope sys after performed @38:7
    }
  }
}
