; CTAs that wait hold every place on the device; those they wait for never start.
; seen: pytorch #170162, Triton-distributed #79, #81 and PR #85
; rule: residency
; base: scatter_push_passes
; launch m 16 n 32 k 8 world 2 ctas 4 resident 3
program @scatter_push for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[M, K] in @13:3
  buffer %b : bf16[N, K] in @14:3
  buffer %c : bf16[%own, N] out first_row rank * %S @15:3
  buffer %partial : bf16[2, world][%S, N] symmetric first_row rank * %S @16:3
  signal %landed[world * %T] device
  signal %free[world] device
  table %tiles[%T] order next_rank_first (%tm, %tn) -> (0, 0)
  %e0 = acc 0 @20:3
  %e1 = sum @21:3
  agent gemm on ctas {
    wait %free[0..world] >= epoch - 2 scope sys @23:5 ; error[residency]: CTAs of `gemm` wait, and 3 of 4 are resident at once
    for %t in cta..%T step ctas { @24:5
      row (%m, %n, %first, %last) = %tiles[%t] @25:7
      let %m0 = %m * 8 @26:7
      let %m1 = min(%m0 + 8, M) @27:7
      let %n0 = %n * 8 @28:7
      let %n1 = min(%n0 + 8, N) @29:7
      mainloop %a[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @30:7
      for %o in %m0 / %S..(%m1 - 1) / %S + 1 { @31:7
        if %o != rank { @32:9
          store peer(%o).%partial{epoch % 2, rank}[max(%o * %S, %m0)..min(%o * %S + %S, %m1), %n0..%n1] <- %e0 @33:11
          signal peer(%o).%landed[rank * %T + %m * %NT + %n] += 8 scope sys after performed @34:11
        }
      }
      let %lo = max(rank * %S, %m0) @37:7
      let %hi = min(rank * %S + %S, %m1) @38:7
      if %lo < %hi { @39:7
        for %s in 0..world { @40:9
          if %s != rank { @41:11
            wait %landed[%s * %T + %m * %NT + %n] >= epoch * 8 scope sys @42:13
          }
        }
        sum %i own %e0 from %partial{epoch % 2, %i}[%lo..%hi, %n0..%n1] @45:9
        store %c[%lo..%hi, %n0..%n1] <- %e1 @46:9
      }
    }
  } exit {
    for %p in 0..world { @50:5
      signal peer(%p).%free[rank] = epoch scope sys after performed @51:7
    }
  }
}
