; A copy engine pulls the peers' shards out of their own tensors, between begin and end of their
;   launches.
program @gather_pull for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[%own, K] exposed first_row rank * %S @10:3
  buffer %b : bf16[N, K] in @11:3
  buffer %c : bf16[M, N] out @12:3
  buffer %a_all : bf16[M, K] symmetric @13:3
  signal %ready[world] host
  signal %pulled[world] host
  signal %arrived[world] device
  table %tiles[%T] order own_shard_first (%tm, %tn) -> (%tm * 8 / %S, (min(%tm * 8 + 8, M) - 1) / %S + 1)
  %e0 = acc 0 @18:3
  agent pull on copy_engine {
    for %p in 0..world { @20:5
      signal peer(%p).%ready[rank] = epoch scope sys after performed @21:7
    }
    for %h in 0..world { @23:5
      let %src = (rank + %h) % world @24:7
      let %end = min(%src * %S + %S, M) @25:7
      wait %ready[%src] >= epoch scope sys @26:7
      copy %a_all[%src * %S..%end, 0..K] <- peer(%src).%a[%src * %S..%end, 0..K] @27:7
      signal %arrived[%src] = epoch scope sys after performed @28:7
      signal peer(%src).%pulled[rank] = epoch scope sys after performed @29:7
    }
    wait %pulled[0..world] >= epoch scope sys @31:5
  }
  agent gemm on ctas {
    for %t in cta..%T step ctas { @34:5
      row (%m, %n, %first, %last) = %tiles[%t] @35:7
      let %m0 = %m * 8 @36:7
      let %m1 = min(%m0 + 8, M) @37:7
      let %n0 = %n * 8 @38:7
      let %n1 = min(%n0 + 8, N) @39:7
      wait %arrived[%first..%last] >= epoch scope sys @40:7
      fence proxy.async @41:7
      mainloop %a_all[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @42:7
      store %c[%m0..%m1, %n0..%n1] <- %e0 @43:7
    }
  }
}
