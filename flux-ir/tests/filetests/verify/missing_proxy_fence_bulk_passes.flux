; Owners pull in bulk what they sum.
program @gemm_rs for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  vars %S, %own, %TS, %MT, %NT, %T, %tm, %tn, %t, %m, %n, %first, %last, %m0, %m1, %n0, %n1, %o, %lo, %hi, %s, %i, %p, %MO, %q, %src, %i2, %tr, %n2, %r, %from, %to
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %TS = max(ceil(%S / 8), 1)
  let %MT = M / max(%S, 1) * %TS + ceil(M % max(%S, 1) / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  let %MO = ceil(%own / 8)
  buffer %a : bf16[M, K] in
  buffer %b : bf16[N, K] in
  buffer %c : bf16[%own, N] out first_row rank * %S
  buffer %c_partial : bf16[2, world][%S, N] symmetric first_row rank * %S
  buffer %c_kept : bf16[2][M, N] symmetric
  signal %c_stored[world * (ceil(%S / 8) * world) * ceil(N / 8)] device
  signal %c_landed[world * (ceil(%S / 8) * world) * ceil(N / 8)] device
  signal %free[world] device
  table %tiles[%T] order next_rank_first by shard (%tm, %tn) -> (0, 0)
  %e0 = acc 0                            @5:21
  %e1 = sum                              @5:9
  agent gemm on ctas {
    wait %free[0..world] >= epoch - 2 scope sys @5:9
    fence proxy.async                    @5:9
    for %t in cta..%T step ctas {        @4:17
      row (%m, %n, %first, %last) = %tiles[%t] @4:17
      let %m0 = %m / %TS * %S + %m % %TS * 8 @4:17
      let %m1 = min(%m0 + 8, min((%m / %TS + 1) * %S, M)) @4:17
      let %n0 = %n * 8                   @4:17
      let %n1 = min(%n0 + 8, N)          @4:17
      mainloop %a[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @5:21
      for %o in %m0 / %S..(%m1 - 1) / %S + 1 { @5:9
        if %o != rank {                  @5:9
          store %c_kept{epoch % 2}[max(%o * %S, %m0)..min(%o * %S + %S, %m1), %n0..%n1] <- %e0 @5:9
          signal peer(%o).%c_stored[rank * %T + %m * %NT + %n] += 8 scope sys after performed @5:9
        }
      }
      let %lo = max(rank * %S, %m0)      @5:9
      let %hi = min(rank * %S + %S, %m1) @5:9
      if %lo < %hi {                     @5:9
        for %s in 0..world {             @5:9
          if %s != rank {                @5:9
            wait %c_landed[%s * %T + %m * %NT + %n] >= epoch * 1 scope sys @5:9
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
  agent pull on tma {
    for %q in cta..(world - 1) * %MO * (%NT * 1) step ctas { @5:9
      let %src = (rank + world - 1 - %q / max(%MO * (%NT * 1), 1)) % world @5:9
      let %i2 = %q % max(%MO * (%NT * 1), 1) @5:9
      let %tr = %i2 / (%NT * 1)          @5:9
      let %n2 = %i2 % (%NT * 1) / 1      @5:9
      let %r = rank * %S + %tr * 8 + %i2 % 1 * 8 @5:9
      let %from = min(%r, min(rank * %S + (%tr + 1) * 8, rank * %S + %own)) @5:9
      let %to = min(%r + 8, min(rank * %S + (%tr + 1) * 8, rank * %S + %own)) @5:9
      wait %c_stored[%src * %T + (rank * %TS + %tr) * %NT + %n2] >= epoch * 8 scope sys @5:9
      fence proxy.async                  @5:9
      copy %c_partial{epoch % 2, %src}[%from..%to, %n2 * 8..min(%n2 * 8 + 8, N)] <- peer(%src).%c_kept{epoch % 2}[%from..%to, %n2 * 8..min(%n2 * 8 + 8, N)] @5:9
      signal %c_landed[%src * %T + (rank * %TS + %tr) * %NT + %n2] += 1 scope sys after performed @5:9
    }
  }
}
