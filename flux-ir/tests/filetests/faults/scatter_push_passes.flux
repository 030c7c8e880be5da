; Partial tiles are put to the rank that owns their rows, which sums them.
program @scatter_push for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[M, K] in @9:3
  buffer %b : bf16[N, K] in @10:3
  buffer %c : bf16[%own, N] out first_row rank * %S @11:3
  buffer %partial : bf16[2, world][%S, N] symmetric first_row rank * %S @12:3
  signal %landed[world * %T] device
  signal %free[world] device
  table %tiles[%T] order next_rank_first (%tm, %tn) -> (0, 0)
  %e0 = acc 0 @16:3
  %e1 = sum @17:3
  agent gemm on ctas {
    wait %free[0..world] >= epoch - 2 scope sys @19:5
    for %t in cta..%T step ctas { @20:5
      row (%m, %n, %first, %last) = %tiles[%t] @21:7
      let %m0 = %m * 8 @22:7
      let %m1 = min(%m0 + 8, M) @23:7
      let %n0 = %n * 8 @24:7
      let %n1 = min(%n0 + 8, N) @25:7
      mainloop %a[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @26:7
      for %o in %m0 / %S..(%m1 - 1) / %S + 1 { @27:7
        if %o != rank { @28:9
          store peer(%o).%partial{epoch % 2, rank}[max(%o * %S, %m0)..min(%o * %S + %S, %m1), %n0..%n1] <- %e0 @29:11
          signal peer(%o).%landed[rank * %T + %m * %NT + %n] += 8 scope sys after performed @30:11
        }
      }
      let %lo = max(rank * %S, %m0) @33:7
      let %hi = min(rank * %S + %S, %m1) @34:7
      if %lo < %hi { @35:7
        for %s in 0..world { @36:9
          if %s != rank { @37:11
            wait %landed[%s * %T + %m * %NT + %n] >= epoch * 8 scope sys @38:13
          }
        }
        sum %i own %e0 from %partial{epoch % 2, %i}[%lo..%hi, %n0..%n1] @41:9
        store %c[%lo..%hi, %n0..%n1] <- %e1 @42:9
      }
    }
  } exit {
    for %p in 0..world { @46:5
      signal peer(%p).%free[rank] = epoch scope sys after performed @47:7
    }
  }
}
