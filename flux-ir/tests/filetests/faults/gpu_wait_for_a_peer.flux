; The release reaches the system, the wait looks no further than its own GPU.
; seen: CuTeDSL GEMM-AR (…all_reduce_blackwell.py, wait side)
; rule: scope-too-narrow
; base: reduce_push_passes
program @reduce_push for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[M, K] in @10:3
  buffer %b : bf16[N, K] in @11:3
  buffer %c : bf16[M, N] out @12:3
  buffer %partial : bf16[2, world][M, N] symmetric @13:3
  signal %landed[world * %T] device
  signal %free[world] device
  table %tiles[%T] order row_major (%tm, %tn) -> (0, 0)
  %e0 = acc 0 @17:3
  %e1 = sum @18:3
  agent gemm on ctas {
    wait %free[0..world] >= epoch - 2 scope sys @20:5
    for %t in cta..%T step ctas { @21:5
      row (%m, %n, %first, %last) = %tiles[%t] @22:7
      let %m0 = %m * 8 @23:7
      let %m1 = min(%m0 + 8, M) @24:7
      let %n0 = %n * 8 @25:7
      let %n1 = min(%n0 + 8, N) @26:7
      mainloop %a[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @27:7
      for %h in 1..world { @28:7
        let %dst = (rank + %h) % world @29:9
        store peer(%dst).%partial{epoch % 2, rank}[%m0..%m1, %n0..%n1] <- %e0 @30:9
        signal peer(%dst).%landed[rank * %T + %m * %NT + %n] = epoch scope sys after performed @31:9
      }
      for %s in 0..world { @33:7
        if %s != rank { @34:9
          wait %landed[%s * %T + %m * %NT + %n] >= epoch scope gpu @35:11 ; error[scope-too-narrow]: rank 0, cta 0 of `gemm` waits for `%landed[1]` at scope gpu, expected sys: rank 1, cta 0 of `gemm` raises it
        }
      }
      sum %i own %e0 from %partial{epoch % 2, %i}[%m0..%m1, %n0..%n1] @38:7
      store %c[%m0..%m1, %n0..%n1] <- %e1 @39:7
    }
  } exit {
    for %p in 0..world { @42:5
      signal peer(%p).%free[rank] = epoch scope sys after performed @43:7
    }
  }
}
