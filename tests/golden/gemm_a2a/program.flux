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
  %e0 = acc 0
  agent gemm on ctas {
    wait %free[0..world] >= epoch - 2 scope sys
    for %t in cta..%T step ctas {
      row (%m, %n, %first, %last) = %tiles[%t]
      let %m0 = first(rank) + %m * 128
      let %m1 = min(%m0 + 128, first(rank) + %own)
      let %n0 = %n * 256
      let %n1 = min(%n0 + 256, N)
      mainloop %a[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T
      let %lo = max(rank * %NS, %n0)
      let %hi = min(rank * %NS + %own_n, %n1)
      if %lo < %hi {
        store %c[%m0..%m1, %lo..%hi] <- %e0
      }
      for %o in %n0 / %NS..(%n1 - 1) / %NS + 1 {
        if %o != rank {
          store peer(%o).%c_inbox{epoch % 2}[%m0..%m1, max(%o * %NS, %n0)..min(%o * %NS + %NS, %n1)] <- %e0
          signal peer(%o).%c_landed[rank * %TS + %m * %NT + %n] += 8 scope sys after performed
        }
      }
    }
  } exit {
    wait %c_copied[0] >= epoch * (%TQ * 3) scope sys
    for %p in 0..world {
      signal peer(%p).%free[rank] = epoch scope sys after performed
    }
  }
  agent land on copy_warps {
    for %q in cta..%TQ step ctas {
      let %src = (rank + world - 1 - %q / (%TR * (%TC * 4))) % world
      let %i = %q % (%TR * (%TC * 4))
      let %m2 = %i / (%TC * 4)
      let %n2 = rank * %NS / 256 + %i % (%TC * 4) / 4
      let %r = %m2 * 128 + %i % 4 * 32
      let %rows = max(first(%src + 1) - first(%src), 0)
      let %from = first(%src) + min(%r, %rows)
      let %to = first(%src) + min(min(%r + 32, (%m2 + 1) * 128), %rows)
      let %left = max(%n2 * 256, rank * %NS)
      let %right = min(%n2 * 256 + 256, rank * %NS + %own_n)
      if %from < %to {
        if %left < %right {
          wait %c_landed[%src * %TS + %m2 * %NT + %n2] >= epoch * 8 scope sys
          copy %c[%from..%to, %left..%right] <- %c_inbox{epoch % 2}[%from..%to, %left..%right]
        }
      }
      signal %c_copied[0] += 3 scope sys after performed
    }
  }
}
