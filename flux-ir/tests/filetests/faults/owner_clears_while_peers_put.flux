; The owner clears the slabs that its peers are already putting to.
; seen: Triton-distributed, ThunderKittens, Flux (workspace reset by a memset or a kernel that
;   nothing orders)
; rule: unordered-writes
; base: scatter_push_passes
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
  %e2 = const 0.0 @22:3
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
          store peer(%o).%partial{epoch % 2, rank}[max(%o * %S, %m0)..min(%o * %S + %S, %m1), %n0..%n1] <- %e0 @34:11 ; error[unordered-writes]: rank 1, cta 0 of `gemm` writes rows 0..1, columns 0..1 of `%partial{3}` on rank 0, where rank 0, cta 0 of `gemm` writes element (0, 0) as well, and nothing orders the two
          signal peer(%o).%landed[rank * %T + %m * %NT + %n] += 8 scope sys after performed @35:11
        }
      }
      let %lo = max(rank * %S, %m0) @38:7
      let %hi = min(rank * %S + %S, %m1) @39:7
      if %lo < %hi { @40:7
        for %z in 0..world { @41:9
          store %partial{epoch % 2, %z}[%lo..%hi, %n0..%n1] <- %e2 @42:11 ; error[unordered-writes]: rank 0, cta 0 of `gemm` writes rows 0..1, columns 0..1 of `%partial{3}` on rank 0, where rank 1, cta 0 of `gemm` writes element (0, 0) as well, and nothing orders the two ; error[overwrite-before-read]: rank 0, cta 0 of `gemm` writes rows 0..1, columns 0..1 of `%partial{3}` on rank 0, which rank 0, cta 0 of `gemm` may not have read yet in launch 1 ; error[missing-proxy-fence]: rank 1, cta 0 of `gemm` writes rows 8..9, columns 0..8 of `%partial{2}` on rank 1 by TMA, and no `fence proxy.async` stands behind the wait for rank 0, cta 0 of `gemm`
        }
        for %s in 0..world { @44:9
          if %s != rank { @45:11
            wait %landed[%s * %T + %m * %NT + %n] >= epoch * 8 scope sys @46:13
          }
        }
        sum %i own %e0 from %partial{epoch % 2, %i}[%lo..%hi, %n0..%n1] @49:9
        store %c[%lo..%hi, %n0..%n1] <- %e1 @50:9
      }
    }
  } exit {
    for %p in 0..world { @54:5
      signal peer(%p).%free[rank] = epoch scope sys after performed @55:7
    }
  }
}
