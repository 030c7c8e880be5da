; The first two ranks are a group: they alone meet, exchange shards and compute.
program @group_barrier for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %G = min(world, 2)
  let %out = min(rank / %G, 1)
  let %S = ceil(M / %G)
  let %own = max(min(%S, M - rank * %S), 0)
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[%own, K] in first_row rank * %S @11:3
  buffer %b : bf16[N, K] in @12:3
  buffer %c : bf16[M * (1 - %out), N] out @13:3
  buffer %a_all : bf16[M, K] symmetric @14:3
  signal %here[world] host
  signal %arrived[%G] device
  table %tiles[%T] order row_major (%tm, %tn) -> (%tm * 8 / %S, (min(%tm * 8 + 8, M) - 1) / %S + 1)
  %e0 = acc 0 @18:3
  agent push on copy_engine {
    if rank < %G { @20:5
      for %p in 0..%G { @21:7
        signal peer(%p).%here[rank] = epoch scope sys after performed @22:9
      }
      wait %here[0..%G] >= epoch scope sys @24:7
      for %dst in 0..%G { @25:7
        copy peer(%dst).%a_all[rank * %S..rank * %S + %own, 0..K] <- %a[rank * %S..rank * %S + %own, 0..K] @26:9
        signal peer(%dst).%arrived[rank] = epoch scope sys after performed @27:9
      }
    }
  }
  agent gemm on ctas {
    for %t in cta..%T * (1 - %out) step ctas { @32:5
      row (%m, %n, %first, %last) = %tiles[%t] @33:7
      let %m0 = %m * 8 @34:7
      let %m1 = min(%m0 + 8, M) @35:7
      let %n0 = %n * 8 @36:7
      let %n1 = min(%n0 + 8, N) @37:7
      wait %arrived[%first..%last] >= epoch scope sys @38:7
      fence proxy.async @39:7
      mainloop %a_all[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @40:7
      store %c[%m0..%m1, %n0..%n1] <- %e0 @41:7
    }
  }
}
