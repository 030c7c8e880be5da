; What a rank keeps for its peers is stored by TMA, box by box: the wait for their reads of it wants a fence.
program @scatter_pull for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[M, K] in @10:3
  buffer %b : bf16[N, K] in @11:3
  buffer %c : bf16[%own, N] out first_row rank * %S @12:3
  buffer %partial : bf16[2][M, N] symmetric @13:3
  signal %stored[world * %T] device
  signal %free[world] device
  table %tiles[%T] order next_rank_first (%tm, %tn) -> (0, 0)
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
      store %partial{epoch % 2}[%m0..%m1, %n0..%n1] <- %e0 @28:7 ; error[missing-proxy-fence]: rank 1, cta 0 of `gemm` writes rows 0..1, columns 0..1 of `%partial{1}` on rank 1 by TMA, and no `fence proxy.async` stands behind the wait for rank 0, cta 0 of `gemm`
      for %o in %m0 / %S..(%m1 - 1) / %S + 1 { @29:7
        if %o != rank { @30:9
          signal peer(%o).%stored[rank * %T + %m * %NT + %n] = epoch scope sys after performed @31:11
        }
      }
      let %lo = max(rank * %S, %m0) @34:7
      let %hi = min(rank * %S + %S, %m1) @35:7
      if %lo < %hi { @36:7
        for %s in 0..world { @37:9
          if %s != rank { @38:11
            wait %stored[%s * %T + %m * %NT + %n] >= epoch scope sys @39:13
          }
        }
        sum %i own %e0 from peer(%i).%partial{epoch % 2}[%lo..%hi, %n0..%n1] @42:9
        store %c[%lo..%hi, %n0..%n1] <- %e1 @43:9
      }
    }
  } exit {
    for %p in 0..world { @47:5
      signal peer(%p).%free[rank] = epoch scope sys after performed @48:7
    }
  }
}
