program @gemm_rs for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[M, K] in
  buffer %b : bf16[N, K] in
  buffer %c : bf16[%own, N] out first_row rank * %S
  buffer %c_partial : bf16[2, world][%S, N] symmetric first_row rank * %S
  signal %c_landed[world * (ceil(M / 8) * ceil(N / 8))] device
  signal %free[world] device
  table %tiles[%T] order next_rank_first (%tm, %tn) -> (0, 0)
  %e0 = acc 0                            @5:21
  %e1 = sum                              @5:9
  agent gemm on ctas {
    wait %free[0..world] >= epoch - 2 scope sys @5:9
    for %t in cta..%T step ctas {        @4:17
      row (%m, %n, %first, %last) = %tiles[%t] @4:17
      let %m0 = %m * 8                   @4:17
      let %m1 = min(%m0 + 8, M)          @4:17
      let %n0 = %n * 8                   @4:17
      let %n1 = min(%n0 + 8, N)          @4:17
      mainloop %a[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @5:21
      for %o in %m0 / %S..(%m1 - 1) / %S + 1 { @5:9
        if %o != rank {                  @5:9
          store peer(%o).%c_partial{epoch % 2, rank}[max(%o * %S, %m0)..min(%o * %S + %S, %m1), %n0..%n1] <- %e0 @5:9
          signal peer(%o).%c_landed[rank * %T + %m * %NT + %n] += 8 scope sys after performed @5:9
        }
      }
      let %lo = max(rank * %S, %m0)      @5:9
      let %hi = min(rank * %S + %S, %m1) @5:9
      if %lo < %hi {                     @5:9
        for %s in 0..world {             @5:9
          if %s != rank {                @5:9
            wait %c_landed[%s * %T + %m * %NT + %n] >= epoch * 8 scope sys @5:9
          }
        }
        sum %i own %e0 from %c_partial{epoch % 2, %i}[%lo..%hi, %n0..%n1] @5:9
        store %c[%lo..%hi, %n0..%n1] <- %e1 @5:9
      }
    }
  } exit {
    for %p in 0..world {                 @5:9
      signal peer(%p).%free[rank] = epoch scope sys after performed @5:9
    }
  }
}
