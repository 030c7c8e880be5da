kernel @gemm_a2a(%a: &sharded<bf16>, %b: &global<bf16>, %c: &mut exchanged<bf16>) { @3:8
  for tile in %c {                       @4:17
    %0 = gemm %a, %b.t                   @5:23
    store %c, %0                         @5:11
  }
}

program @gemm_a2a for sm_90a {
  tile (128, 256, 64) stages 4 consumers cooperative
  let %S = shard
  let %own = max(first(rank + 1) - first(rank), 0)
  let %NS = ceil(N / world)
  let %own_n = max(min(%NS, N - rank * %NS), 0)
  let %TR = ceil(%S / 128)
  let %TS = %TR * ceil(N / 256)
  let %TC = ceil(%NS / 256) + 1
  let %TQ = (world - 1) * %TR * %TC * 4
  let %MT = ceil(%own / 128)
  let %NT = ceil(N / 256)
  let %T = %MT * %NT
  buffer %a : bf16[%own, K] in first_row first(rank)
  buffer %b : bf16[N, K] in
  buffer %c : bf16[M, %own_n] out first_col rank * %NS
  buffer %c_inbox : bf16[2][M, %NS] symmetric first_col rank * %NS
  signal %c_landed[world * %TS] device
  signal %c_copied[1] device
  signal %free[world] device
  table %tiles[%T] order next_columns_first of first(rank)..first(rank) + %own (%tm, %tn) -> (0, 0)
  %e0 = acc 0                            @5:23
  agent gemm on ctas {
    wait %free[0..world] >= epoch - 2 scope sys @5:11
    for %t in cta..%T step ctas {        @4:17
      row (%m, %n, %first, %last) = %tiles[%t] @4:17
      let %m0 = first(rank) + %m * 128   @4:17
      let %m1 = min(%m0 + 128, first(rank) + %own) @4:17
      let %n0 = %n * 256                 @4:17
      let %n1 = min(%n0 + 256, N)        @4:17
      mainloop %a[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @5:23
      let %lo = max(rank * %NS, %n0)     @5:11
      let %hi = min(rank * %NS + %own_n, %n1) @5:11
      if %lo < %hi {                     @5:11
        store %c[%m0..%m1, %lo..%hi] <- %e0 @5:11
      }
      for %o in %n0 / %NS..(%n1 - 1) / %NS + 1 { @5:11
        if %o != rank {                  @5:11
          store peer(%o).%c_inbox{epoch % 2}[%m0..%m1, max(%o * %NS, %n0)..min(%o * %NS + %NS, %n1)] <- %e0 @5:11
          signal peer(%o).%c_landed[rank * %TS + %m * %NT + %n] += 8 scope sys after performed @5:11
        }
      }
    }
  } exit {
    wait %c_copied[0] >= epoch * (%TQ * 3) scope sys @5:11
    for %p in 0..world {                 @5:11
      signal peer(%p).%free[rank] = epoch scope sys after performed @5:11
    }
  }
  agent land on copy_warps {
    for %q in cta..%TQ step ctas {       @5:11
      let %src = (rank + world - 1 - %q / (%TR * (%TC * 4))) % world @5:11
      let %i = %q % (%TR * (%TC * 4))    @5:11
      let %m2 = %i / (%TC * 4)           @5:11
      let %n2 = rank * %NS / 256 + %i % (%TC * 4) / 4 @5:11
      let %r = %m2 * 128 + %i % 4 * 32   @5:11
      let %rows = max(first(%src + 1) - first(%src), 0) @5:11
      let %from = first(%src) + min(%r, %rows) @5:11
      let %to = first(%src) + min(min(%r + 32, (%m2 + 1) * 128), %rows) @5:11
      let %left = max(%n2 * 256, rank * %NS) @5:11
      let %right = min(%n2 * 256 + 256, rank * %NS + %own_n) @5:11
      if %from < %to {                   @5:11
        if %left < %right {              @5:11
          wait %c_landed[%src * %TS + %m2 * %NT + %n2] >= epoch * 8 scope sys @5:11
          copy %c[%from..%to, %left..%right] <- %c_inbox{epoch % 2}[%from..%to, %left..%right] @5:11
        }
      }
      signal %c_copied[0] += 3 scope sys after performed @5:11
    }
  }
}
