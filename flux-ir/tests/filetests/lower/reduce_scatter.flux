kernel @reduce_scatter(%x: &global<bf16>, %c: &mut scattered<bf16>) { @3:8
  for tile in %c {                       @4:17
    %0 = load %x                         @5:23
    %1 = reduce %c, %0                   @5:11
    store %c, %1                         @5:11
  }
}

program @reduce_scatter for sm_90a {
  tile (128, 256, 64) stages 4 consumers cooperative
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %MT = ceil(M / 128)
  let %NT = ceil(N / 256)
  let %T = %MT * %NT
  buffer %x : bf16[M, N] in
  buffer %c : bf16[%own, N] out first_row rank * %S
  buffer %c_partial : bf16[2, world][%S, N] symmetric first_row rank * %S
  signal %c_landed[world * (ceil(M / 128) * ceil(N / 256))] device
  signal %free[world] device
  table %tiles[%T] order next_rank_first (%tm, %tn) -> (0, 0)
  %e0 = load %x                          @5:23
  %e1 = sum                              @5:11
  agent tiles on ctas {
    wait %free[0..world] >= epoch - 2 scope sys @5:11
    for %t in cta..%T step ctas {        @4:17
      row (%m, %n, %first, %last) = %tiles[%t] @4:17
      let %m0 = %m * 128                 @4:17
      let %m1 = min(%m0 + 128, M)        @4:17
      let %n0 = %n * 256                 @4:17
      let %n1 = min(%n0 + 256, N)        @4:17
      for %o in %m0 / %S..(%m1 - 1) / %S + 1 { @5:11
        if %o != rank {                  @5:11
          store peer(%o).%c_partial{epoch % 2, rank}[max(%o * %S, %m0)..min(%o * %S + %S, %m1), %n0..%n1] <- %e0 @5:11
          signal peer(%o).%c_landed[rank * %T + %m * %NT + %n] += 8 scope sys after performed @5:11
        }
      }
      let %lo = max(rank * %S, %m0)      @5:11
      let %hi = min(rank * %S + %S, %m1) @5:11
      if %lo < %hi {                     @5:11
        for %s in 0..world {             @5:11
          if %s != rank {                @5:11
            wait %c_landed[%s * %T + %m * %NT + %n] >= epoch * 8 scope sys @5:11
          }
        }
        sum %i own %e0 from %c_partial{epoch % 2, %i}[%lo..%hi, %n0..%n1] @5:11
        store %c[%lo..%hi, %n0..%n1] <- %e1 @5:11
      }
    }
  } exit {
    for %p in 0..world {                 @5:11
      signal peer(%p).%free[rank] = epoch scope sys after performed @5:11
    }
  }
}
