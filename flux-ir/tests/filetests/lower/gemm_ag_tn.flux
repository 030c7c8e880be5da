kernel @gemm_ag_tn(%a: &global<bf16>, %b: &gathered<bf16>, %c: &mut global<bf16>) { @3:8
  for tile in %c {                       @4:17
    %0 = wait %b                         @5:19
    %1 = gemm %a.t, %b                   @6:23
    store %c, %1                         @6:11
  }
}

program @gemm_ag_tn for sm_90a {
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
  buffer %a : bf16[K, M] in
  buffer %b : bf16[%own_k, N] in first_row rank * %KS
  buffer %c : bf16[M, N] out
  buffer %b_all : bf16[2][K, N] symmetric
  signal %free_host[world] host
  signal %b_arrived[world * %CH] device
  table %tiles[%T] order grouped(16) (%tm, %tn) -> (0, 0)
  %e0 = acc 0                            @6:23
  agent push_b on copy_engine {
    for %h in 0..world {                 @5:19
      let %dst = (rank + world - %h) % world @5:19
      wait %free_host[%dst] >= epoch - 2 scope sys @5:19
      for %c in 0..ceil(%own_k / %CR) {  @5:19
        let %from = rank * %KS + %c * %CR @5:19
        copy peer(%dst).%b_all{epoch % 2}[%from..min(%from + %CR, rank * %KS + %own_k), 0..N] <- %b[%from..min(%from + %CR, rank * %KS + %own_k), 0..N] @5:19
        signal peer(%dst).%b_arrived[rank * %CH + %c] = epoch scope sys after performed @5:19
      }
    }
  }
  agent gemm on ctas {
    for %t in cta..%T step ctas {        @4:17
      row (%m, %n, %first, %last) = %tiles[%t] @4:17
      let %m0 = %m * 128                 @4:17
      let %m1 = min(%m0 + 128, M)        @4:17
      let %n0 = %n * 256                 @4:17
      let %n1 = min(%n0 + 256, N)        @4:17
      for %i in 0..world * %CH {         @4:17
        let %c2 = (rank * %CH + %i) % (world * %CH) @4:17
        let %k0 = min(ceil((%c2 / %CH * %KS + min(%c2 % %CH * %CR, %KS)) / 64) * 64, K) @4:17
        let %k1 = min(ceil(((%c2 + 1) / %CH * %KS + min((%c2 + 1) % %CH * %CR, %KS)) / 64) * 64, K) @4:17
        wait %b_arrived[%k0 / %KS * %CH + %k0 % %KS / %CR..(max(%k1, 1) - 1) / %KS * %CH + (max(%k1, 1) - 1) % %KS / %CR + 1] >= epoch scope sys @5:19
        fence proxy.async                @5:19
        mainloop %a[%k0..%k1, %m0..%m1]^T * %b_all{epoch % 2}[%k0..%k1, %n0..%n1] @6:23
      }
      store %c[%m0..%m1, %n0..%n1] <- %e0 @6:11
    }
  } exit {
    for %p in 0..world {                 @5:19
      signal peer(%p).%free_host[rank] = epoch scope sys after performed @5:19
    }
  }
}
