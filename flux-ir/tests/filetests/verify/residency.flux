; Four CTAs wait for each other where three fit.
; launch m 16 n 16 k 8 world 2 ctas 4 resident 3
program @sum for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[M, K] in @8:3
  buffer %b : bf16[N, K] in @9:3
  buffer %c : bf16[M, N] out @10:3
  buffer %x : bf16[2, world][M, N] symmetric @11:3
  signal %landed[world * %T] device
  signal %free[world] device
  table %tiles[%T] order row_major (%tm, %tn) -> (0, 0)
  %e0 = acc 0 @15:3
  %e1 = sum @16:3
  agent gemm on ctas {
    wait %free[0..world] >= epoch - 2 scope sys @18:5 ; error[residency]: CTAs of `gemm` wait, and 3 of 4 are resident at once
    for %t in cta..%T step ctas { @19:5
      row (%m, %n, %first, %last) = %tiles[%t] @20:7
      let %m0 = %m * 8 @21:7
      let %m1 = min(%m0 + 8, M) @22:7
      let %n0 = %n * 8 @23:7
      let %n1 = min(%n0 + 8, N) @24:7
      mainloop %a[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @25:7
      for %h in 1..world { @26:7
        let %p = (rank + %h) % world @27:9
        store peer(%p).%x{epoch % 2, rank}[%m0..%m1, %n0..%n1] <- %e0 @28:9
        signal peer(%p).%landed[rank * %T + %t] = epoch scope sys after performed @29:9
      }
      for %h in 1..world { @31:7
        wait %landed[(rank + %h) % world * %T + %t] >= epoch scope sys @32:9
      }
      sum %i own %e0 from %x{epoch % 2, %i}[%m0..%m1, %n0..%n1] @34:7
      store %c[%m0..%m1, %n0..%n1] <- %e1 @35:7
    }
  } exit {
    for %p in 0..world { @38:5
      signal peer(%p).%free[rank] = epoch scope sys after performed @39:7
    }
  }
}
