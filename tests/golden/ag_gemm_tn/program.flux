program @ag_gemm_tn for sm_90a {
  tile (128, 256, 64) stages 4 consumers cooperative
  vars %S, %own, %KS, %own_k, %CR, %CH, %h, %dst, %c, %from, %MT, %NT, %T, %tm, %tn, %t, %m, %n, %first, %last, %m0, %m1, %n0, %n1, %i, %c2, %k0, %k1, %p
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %KS = ceil(K / world)
  let %own_k = max(min(%KS, K - rank * %KS), 0)
  let %CR = max(%KS, 1)
  let %CH = ceil(%KS / %CR)
  let %MT = ceil(M / 128)
  let %NT = ceil(N / 256)
  let %T = %MT * %NT
  buffer %a : bf16[%own_k, M] in first_row rank * %KS
  buffer %b : bf16[K, N] in
  buffer %c : bf16[M, N] out
  buffer %a_all : bf16[2][K, M] symmetric
  signal %free_host[world] host
  signal %a_arrived[world * %CH] device
  table %tiles[%T] order grouped(16) (%tm, %tn) -> (0, 0)
  %e0 = acc 0
  agent push_a on copy_engine {
    for %h in 0..world {
      let %dst = (rank + world - %h) % world
      wait %free_host[%dst] >= epoch - 2 scope sys
      for %c in 0..ceil(%own_k / %CR) {
        let %from = rank * %KS + %c * %CR
        copy peer(%dst).%a_all{epoch % 2}[%from..min(%from + %CR, rank * %KS + %own_k), 0..M] <- %a[%from..min(%from + %CR, rank * %KS + %own_k), 0..M]
        signal peer(%dst).%a_arrived[rank * %CH + %c] = epoch scope sys after performed
      }
    }
  }
  agent gemm on ctas {
    for %t in cta..%T step ctas {
      row (%m, %n, %first, %last) = %tiles[%t]
      let %m0 = %m * 128
      let %m1 = min(%m0 + 128, M)
      let %n0 = %n * 256
      let %n1 = min(%n0 + 256, N)
      for %i in 0..world * %CH {
        let %c2 = (rank * %CH + %i) % (world * %CH)
        let %k0 = min(ceil((%c2 / %CH * %KS + min(%c2 % %CH * %CR, %KS)) / 64) * 64, K)
        let %k1 = min(ceil(((%c2 + 1) / %CH * %KS + min((%c2 + 1) % %CH * %CR, %KS)) / 64) * 64, K)
        wait %a_arrived[%k0 / %KS * %CH + %k0 % %KS / %CR..(max(%k1, 1) - 1) / %KS * %CH + (max(%k1, 1) - 1) % %KS / %CR + 1] >= epoch scope sys
        fence proxy.async
        mainloop %a_all{epoch % 2}[%k0..%k1, %m0..%m1]^T * %b[%k0..%k1, %n0..%n1]
      }
      store %c[%m0..%m1, %n0..%n1] <- %e0
    }
  } exit {
    for %p in 0..world {
      signal peer(%p).%free_host[rank] = epoch scope sys after performed
    }
  }
}
