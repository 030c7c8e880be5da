kernel @a2a_gemm(%a: &exchanged<bf16>, %b: &global<bf16>, %c: &mut sharded<bf16>) { @3:8
  for tile in %c {                       @4:17
    %0 = wait %a                         @5:19
    %1 = gemm %0, %b.t                   @6:23
    store %c, %1                         @6:11
  }
}

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
  %e0 = acc 0                            @6:23
  agent push_a on copy_engine {
    for %h in 0..world {                 @5:19
      let %dst = (rank + world - %h) % world @5:19
      wait %free_host[%dst] >= epoch - 2 scope sys @5:19
      let %rows = max(first(%dst + 1) - first(%dst), 0) @5:19
      for %c in 0..ceil(%rows / %CR) {   @5:19
        let %from = first(%dst) + %c * %CR @5:19
        copy peer(%dst).%a_all{epoch % 2}[%from..min(%from + %CR, first(%dst) + %rows), rank * %KS..rank * %KS + %own_k] <- %a[%from..min(%from + %CR, first(%dst) + %rows), rank * %KS..rank * %KS + %own_k] @5:19
        signal peer(%dst).%a_arrived[rank * %CH + %c] = epoch scope sys after performed @5:19
      }
    }
  }
  agent gemm on ctas {
    for %t in cta..%T step ctas {        @4:17
      row (%m, %n, %first, %last) = %tiles[%t] @4:17
      let %m0 = first(rank) + %m * 128   @4:17
      let %m1 = min(%m0 + 128, first(rank) + %own) @4:17
      let %n0 = %n * 256                 @4:17
      let %n1 = min(%n0 + 256, N)        @4:17
      for %h2 in 0..world {              @4:17
        let %from2 = (rank + %h2) % world @4:17
        let %k0 = min(ceil(%from2 * %KS / 64) * 64, K) @4:17
        let %k1 = min(ceil((%from2 + 1) * %KS / 64) * 64, K) @4:17
        for %src in %k0 / %KS..(max(%k1, 1) - 1) / %KS + 1 { @5:19
          wait %a_arrived[%src * %CH + %first..%src * %CH + %last] >= epoch scope sys @5:19
        }
        fence proxy.async                @5:19
        mainloop %a_all{epoch % 2}[%m0..%m1, %k0..%k1] * %b[%n0..%n1, %k0..%k1]^T @6:23
      }
      store %c[%m0..%m1, %n0..%n1] <- %e0 @6:11
    }
  } exit {
    for %p in 0..world {                 @5:19
      signal peer(%p).%free_host[rank] = epoch scope sys after performed @5:19
    }
  }
}
