; A peer's tile is given back, and then summed.
; seen: Flux sm90 GEMM-RS (compare-and-swap 1 to 0, then the TMA load)
; rule: overwrite-before-read
; base: scatter_pull_passes
program @scatter_pull for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[M, K] in @12:3
  buffer %b : bf16[N, K] in @13:3
  buffer %c : bf16[%own, N] out first_row rank * %S @14:3
  buffer %partial : bf16[2][M, N] symmetric @15:3
  signal %stored[world * %T] device
  signal %free[world] device
  table %tiles[%T] order next_rank_first (%tm, %tn) -> (0, 0)
  %e0 = acc 0 @19:3
  %e1 = sum @20:3
  agent gemm on ctas {
    wait %free[0..world] >= epoch - 2 scope sys @22:5
    fence proxy.async @22:5
    if cta == 0 { @23:5
      for %p in 0..world { @24:7
        signal peer(%p).%free[rank] = epoch scope sys after performed @25:9
      }
    }
    for %t in cta..%T step ctas { @28:5
      row (%m, %n, %first, %last) = %tiles[%t] @29:7
      let %m0 = %m * 8 @30:7
      let %m1 = min(%m0 + 8, M) @31:7
      let %n0 = %n * 8 @32:7
      let %n1 = min(%n0 + 8, N) @33:7
      mainloop %a[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @34:7
      store %partial{epoch % 2}[%m0..%m1, %n0..%n1] <- %e0 @35:7 ; error[overwrite-before-read]: rank 1, cta 0 of `gemm` writes rows 0..1, columns 0..1 of `%partial{1}` on rank 1, which rank 0, cta 0 of `gemm` may not have read yet in launch 1
      for %o in %m0 / %S..(%m1 - 1) / %S + 1 { @36:7
        if %o != rank { @37:9
          signal peer(%o).%stored[rank * %T + %m * %NT + %n] = epoch scope sys after performed @38:11
        }
      }
      let %lo = max(rank * %S, %m0) @41:7
      let %hi = min(rank * %S + %S, %m1) @42:7
      if %lo < %hi { @43:7
        for %s in 0..world { @44:9
          if %s != rank { @45:11
            wait %stored[%s * %T + %m * %NT + %n] >= epoch scope sys @46:13
          }
        }
        sum %i own %e0 from peer(%i).%partial{epoch % 2}[%lo..%hi, %n0..%n1] @49:9
        store %c[%lo..%hi, %n0..%n1] <- %e1 @50:9
      }
    }
  }
}
