program @a2a_gemm for sm_90a {
  tile (128, 256, 64) stages 4 consumers cooperative
  vars %S, %own, %KS, %own_k, %CR, %CH, %h, %dst, %rows, %c, %from, %MT, %NT, %T, %tm, %tn, %t, %m, %n, %first, %last, %m0, %m1, %n0, %n1, %h2, %from2, %k0, %k1, %src, %p
  let %S = shard
  let %own = max(first(rank + 1) - first(rank), 0)
  let %KS = ceil(K / world)
  let %own_k = max(min(%KS, K - rank * %KS), 0)
  let %CR = max(%S, 1)
  let %CH = ceil(%S / %CR)
  let %MT = ceil(%own / 128)
  let %NT = ceil(N / 256)
  let %T = %MT * %NT
  buffer %a : bf16[M, %own_k] in first_col rank * %KS
  buffer %b : bf16[N, K] in
  buffer %c : bf16[%own, N] out first_row first(rank)
  buffer %a_all : bf16[2][%S, K] symmetric first_row first(rank)
  signal %free_host[world] host
  signal %a_arrived[world * %CH] device
  table %tiles[%T] order grouped(16) of first(rank)..first(rank) + %own (%tm, %tn) -> (max(first(rank) + %tm * 128 - first(rank), 0) / %CR, max(min(first(rank) + %tm * 128 + 128, first(rank) + %own) - 1 - first(rank), 0) / %CR + 1)
  %e0 = acc 0
  agent push_a on copy_engine {
    for %h in 0..world {
      let %dst = (rank + world - %h) % world
      wait %free_host[%dst] >= epoch - 2 scope sys
      let %rows = max(first(%dst + 1) - first(%dst), 0)
      for %c in 0..ceil(%rows / %CR) {
        let %from = first(%dst) + %c * %CR
        copy peer(%dst).%a_all{epoch % 2}[%from..min(%from + %CR, first(%dst) + %rows), rank * %KS..rank * %KS + %own_k] <- %a[%from..min(%from + %CR, first(%dst) + %rows), rank * %KS..rank * %KS + %own_k]
        signal peer(%dst).%a_arrived[rank * %CH + %c] = epoch scope sys after performed
      }
    }
  }
  agent gemm on ctas {
    for %t in cta..%T step ctas {
      row (%m, %n, %first, %last) = %tiles[%t]
      let %m0 = first(rank) + %m * 128
      let %m1 = min(%m0 + 128, first(rank) + %own)
      let %n0 = %n * 256
      let %n1 = min(%n0 + 256, N)
      for %h2 in 0..world {
        let %from2 = (rank + %h2) % world
        let %k0 = min(ceil(%from2 * %KS / 64) * 64, K)
        let %k1 = min(ceil((%from2 + 1) * %KS / 64) * 64, K)
        for %src in %k0 / %KS..(max(%k1, 1) - 1) / %KS + 1 {
          wait %a_arrived[%src * %CH + %first..%src * %CH + %last] >= epoch scope sys
        }
        fence proxy.async
        mainloop %a_all{epoch % 2}[%m0..%m1, %k0..%k1] * %b[%n0..%n1, %k0..%k1]^T
      }
      store %c[%m0..%m1, %n0..%n1] <- %e0
    }
  } exit {
    for %p in 0..world {
      signal peer(%p).%free_host[rank] = epoch scope sys after performed
    }
  }
}
