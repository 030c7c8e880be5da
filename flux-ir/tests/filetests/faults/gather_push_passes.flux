; A copy engine pushes chunks of a shard to every rank; tiles wait for the chunks they read.
program @gather_push for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %CH = ceil(%S / 4)
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[%own, K] in first_row rank * %S @10:3
  buffer %b : bf16[N, K] in @11:3
  buffer %c : bf16[M, N] out @12:3
  buffer %a_all : bf16[2][M, K] symmetric @13:3
  signal %free[world] host
  signal %arrived[world * %CH] device
  table %tiles[%T] order own_shard_first (%tm, %tn) -> (%tm * 8 / %S * %CH + %tm * 8 % %S / 4, (min(%tm * 8 + 8, M) - 1) / %S * %CH + (min(%tm * 8 + 8, M) - 1) % %S / 4 + 1)
  %e0 = acc 0 @17:3
  agent push on copy_engine {
    for %h in 0..world { @19:5
      let %dst = (rank + %h) % world @20:7
      wait %free[%dst] >= epoch - 2 scope sys @21:7
      for %c in 0..ceil(%own / 4) { @22:7
        let %from = rank * %S + %c * 4 @23:9
        let %to = min(%from + 4, rank * %S + %own) @24:9
        copy peer(%dst).%a_all{epoch % 2}[%from..%to, 0..K] <- %a[%from..%to, 0..K] @25:9
        signal peer(%dst).%arrived[rank * %CH + %c] = epoch scope sys after performed @26:9
      }
    }
  }
  agent gemm on ctas {
    for %t in cta..%T step ctas { @31:5
      row (%m, %n, %first, %last) = %tiles[%t] @32:7
      let %m0 = %m * 8 @33:7
      let %m1 = min(%m0 + 8, M) @34:7
      let %n0 = %n * 8 @35:7
      let %n1 = min(%n0 + 8, N) @36:7
      wait %arrived[%first..%last] >= epoch scope sys @37:7
      fence proxy.async @38:7
      mainloop %a_all{epoch % 2}[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @39:7
      store %c[%m0..%m1, %n0..%n1] <- %e0 @40:7
    }
  } exit {
    for %p in 0..world { @43:5
      signal peer(%p).%free[rank] = epoch scope sys after performed @44:7
    }
  }
}
