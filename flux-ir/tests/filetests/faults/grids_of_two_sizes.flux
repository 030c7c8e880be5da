; Each rank tunes its own grid; flags by CTA then count differently.
; seen: vLLM PR #43616, flashinfer #3408
; rule: launch-differs
; base: scatter_push_passes
; launch rank 0 m 16 n 16 k 8 world 2 ctas 4
; launch rank 1 m 16 n 16 k 8 world 2 ctas 3
program @scatter_push for host { ; error[launch-differs]: rank 1 launches `scatter_push` with ctas = 3, rank 0 with 4
  tile (8, 8, 8) stages 4 consumers cooperative
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[M, K] in @14:3
  buffer %b : bf16[N, K] in @15:3
  buffer %c : bf16[%own, N] out first_row rank * %S @16:3
  buffer %partial : bf16[2, world][%S, N] symmetric first_row rank * %S @17:3
  signal %landed[world * %T] device
  signal %free[world] device
  table %tiles[%T] order next_rank_first (%tm, %tn) -> (0, 0)
  %e0 = acc 0 @21:3
  %e1 = sum @22:3
  agent gemm on ctas {
    wait %free[0..world] >= epoch - 2 scope sys @24:5
    for %t in cta..%T step ctas { @25:5
      row (%m, %n, %first, %last) = %tiles[%t] @26:7
      let %m0 = %m * 8 @27:7
      let %m1 = min(%m0 + 8, M) @28:7
      let %n0 = %n * 8 @29:7
      let %n1 = min(%n0 + 8, N) @30:7
      mainloop %a[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @31:7
      for %o in %m0 / %S..(%m1 - 1) / %S + 1 { @32:7
        if %o != rank { @33:9
          store peer(%o).%partial{epoch % 2, rank}[max(%o * %S, %m0)..min(%o * %S + %S, %m1), %n0..%n1] <- %e0 @34:11
          signal peer(%o).%landed[rank * %T + %m * %NT + %n] += 8 scope sys after performed @35:11
        }
      }
      let %lo = max(rank * %S, %m0) @38:7
      let %hi = min(rank * %S + %S, %m1) @39:7
      if %lo < %hi { @40:7
        for %s in 0..world { @41:9
          if %s != rank { @42:11
            wait %landed[%s * %T + %m * %NT + %n] >= epoch * 8 scope sys @43:13
          }
        }
        sum %i own %e0 from %partial{epoch % 2, %i}[%lo..%hi, %n0..%n1] @46:9
        store %c[%lo..%hi, %n0..%n1] <- %e1 @47:9
      }
    }
  } exit {
    for %p in 0..world { @51:5
      signal peer(%p).%free[rank] = epoch scope sys after performed @52:7
    }
  }
}
