; One counter a tile for all sources: a fast peer's next launch stands in for a lagging one's.
; seen: ThunderKittens, TransformerEngine (one counter a tile or chunk that several peers raise):
;   a hazard
; rule: count-not-exact
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
  signal %landed[%T] device
  signal %free[world] device
  table %tiles[%T] order next_rank_first (%tm, %tn) -> (0, 0)
  %e0 = acc 0 @20:3
  %e1 = sum @21:3
  agent gemm on ctas {
    wait %free[0..world] >= epoch - 2 scope sys @23:5
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
          signal peer(%o).%landed[%m * %NT + %n] += 8 scope sys after performed @34:11 ; error[count-not-exact]: rank 1, cta 0 of `gemm` may raise `%landed[0]` before rank 2, cta 0 of `gemm` does, and end a wait for 16 in its place
        }
      }
      let %lo = max(rank * %S, %m0) @37:7
      let %hi = min(rank * %S + %S, %m1) @38:7
      if %lo < %hi { @39:7
        for %s in 0..world { @40:9
          if %s != rank { @41:11
            wait %landed[%m * %NT + %n] >= epoch * 8 * (world - 1) scope sys @42:13 ; error[count-not-exact]: the wait for `%landed[1]` stands for other raises in the last launch than in the one before
          }
        }
        sum %i own %e0 from %partial{epoch % 2, %i}[%lo..%hi, %n0..%n1] @45:9 ; error[read-before-arrival]: rank 0, cta 0 of `gemm` reads rows 0..1, columns 0..1 of `%partial{4}` on rank 0, and nothing it waits for says that element (0, 0) has been written
        store %c[%lo..%hi, %n0..%n1] <- %e1 @46:9
      }
    }
  } exit {
    for %p in 0..world { @50:5
      signal peer(%p).%free[rank] = epoch scope sys after performed @51:7
    }
  }
}
