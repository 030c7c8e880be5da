; One buffer for all launches: a barrier of all ranks stands before its shards are pushed.
program @gather_barrier for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[%own, K] in first_row rank * %S @9:3
  buffer %b : bf16[N, K] in @10:3
  buffer %c : bf16[M, N] out @11:3
  buffer %a_all : bf16[M, K] symmetric @12:3
  signal %here[world] host
  signal %arrived[world] device
  table %tiles[%T] order own_shard_first (%tm, %tn) -> (%tm * 8 / %S, (min(%tm * 8 + 8, M) - 1) / %S + 1)
  %e0 = acc 0 @16:3
  agent push on copy_engine {
    for %p in 0..world { @18:5
      signal peer(%p).%here[rank] = epoch scope sys after performed @19:7
    }
    wait %here[0..world] >= epoch scope sys @21:5
    for %h in 0..world { @22:5
      let %dst = (rank + %h) % world @23:7
      copy peer(%dst).%a_all[rank * %S..rank * %S + %own, 0..K] <- %a[rank * %S..rank * %S + %own, 0..K] @24:7
      signal peer(%dst).%arrived[rank] = epoch scope sys after performed @25:7
    }
  }
  agent gemm on ctas {
    for %t in cta..%T step ctas { @29:5
      row (%m, %n, %first, %last) = %tiles[%t] @30:7
      let %m0 = %m * 8 @31:7
      let %m1 = min(%m0 + 8, M) @32:7
      let %n0 = %n * 8 @33:7
      let %n1 = min(%n0 + 8, N) @34:7
      for %s in %first..%last { @35:7
        wait %arrived[%s] >= epoch scope sys @36:9
      }
      fence proxy.async @38:7
      mainloop %a_all[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @39:7
      store %c[%m0..%m1, %n0..%n1] <- %e0 @40:7
    }
  }
}
