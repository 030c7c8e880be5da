program @columns_to_rows for sm_90a {
  tile (128, 64, 64) stages 2 consumers cooperative
  vars %S, %own, %NS, %own_n, %CR, %CH, %h, %dst, %rows, %c, %from, %MT, %NT, %T, %tm, %tn, %t, %m, %n, %first, %last, %m0, %m1, %n0, %n1, %src, %p
  let %S = shard
  let %own = max(first(rank + 1) - first(rank), 0)
  let %NS = ceil(N / world)
  let %own_n = max(min(%NS, N - rank * %NS), 0)
  let %CR = max(%S, 1)
  let %CH = ceil(%S / %CR)
  let %MT = ceil(%own / 128)
  let %NT = ceil(N / 64)
  let %T = %MT * %NT
  buffer %x : bf16[M, %own_n] in first_col rank * %NS
  buffer %c : bf16[%own, N] out first_row first(rank)
  buffer %x_all : bf16[2][%S, N] symmetric first_row first(rank)
  signal %free_host[world] host
  signal %x_arrived[world * %CH] device
  table %tiles[%T] order grouped(16) of first(rank)..first(rank) + %own (%tm, %tn) -> (max(first(rank) + %tm * 128 - first(rank), 0) / %CR, max(min(first(rank) + %tm * 128 + 128, first(rank) + %own) - 1 - first(rank), 0) / %CR + 1)
  %e0 = loaded 0
  agent push_x on copy_engine {
    for %h in 0..world {
      let %dst = (rank + world - %h) % world
      wait %free_host[%dst] >= epoch - 2 scope sys
      let %rows = max(first(%dst + 1) - first(%dst), 0)
      for %c in 0..ceil(%rows / %CR) {
        let %from = first(%dst) + %c * %CR
        copy peer(%dst).%x_all{epoch % 2}[%from..min(%from + %CR, first(%dst) + %rows), rank * %NS..rank * %NS + %own_n] <- %x[%from..min(%from + %CR, first(%dst) + %rows), rank * %NS..rank * %NS + %own_n]
        signal peer(%dst).%x_arrived[rank * %CH + %c] = epoch scope sys after performed
      }
    }
  }
  agent tiles on ctas {
    for %t in cta..%T step ctas {
      row (%m, %n, %first, %last) = %tiles[%t]
      let %m0 = first(rank) + %m * 128
      let %m1 = min(%m0 + 128, first(rank) + %own)
      let %n0 = %n * 64
      let %n1 = min(%n0 + 64, N)
      for %src in %n0 / %NS..(max(%n1, 1) - 1) / %NS + 1 {
        wait %x_arrived[%src * %CH + %first..%src * %CH + %last] >= epoch scope sys
      }
      load 0 from %x_all{epoch % 2}[%m0..%m1, %n0..%n1]
      store %c[%m0..%m1, %n0..%n1] <- %e0
    }
  } exit {
    for %p in 0..world {
      signal peer(%p).%free_host[rank] = epoch scope sys after performed
    }
  }
}
