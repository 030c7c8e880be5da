kernel @ag_gemm_gelu(%a: &gathered<bf16>, %b: &global<bf16>, %bias: &global<f32>, %c: &mut global<bf16>) { @5:8
  for tile in %c {                       @6:17
    %0 = wait %a                         @7:17
    %1 = gemm %0, %b.t                   @8:19
    %2 = cols %bias                      @9:36
    %3 = add %1, %2                      @9:34
    %4 = gelu %3                         @9:23
    store %c, %4                         @9:9
  }
}

program @ag_gemm_gelu for sm_90a {
  tile (128, 256, 64) stages 4 consumers cooperative
  vars %S, %own, %CR, %CH, %h, %dst, %c, %from, %MT, %NT, %T, %tm, %tn, %t, %m, %n, %first, %last, %m0, %m1, %n0, %n1, %p
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %CR = max(%S, 1)
  let %CH = ceil(%S / %CR)
  let %MT = ceil(M / 128)
  let %NT = ceil(N / 256)
  let %T = %MT * %NT
  buffer %a : bf16[%own, K] in first_row rank * %S
  buffer %b : bf16[N, K] in
  buffer %bias : f32[1, N] in
  buffer %c : bf16[M, N] out
  buffer %a_all : bf16[2][M, K] symmetric
  signal %free_host[world] host
  signal %a_arrived[world * %CH] device
  table %tiles[%T] order own_shard_first (%tm, %tn) -> (%tm * 128 / %S * %CH + %tm * 128 % %S / %CR, (min(%tm * 128 + 128, M) - 1) / %S * %CH + (min(%tm * 128 + 128, M) - 1) % %S / %CR + 1)
  %e0 = acc 0                            @8:19
  %e1 = cols %bias                       @9:36
  %e2 = add %e0, %e1                     @9:34
  %e3 = gelu %e2                         @9:23
  agent push_a on copy_engine {
    for %h in 0..world {                 @7:17
      let %dst = (rank + %h) % world     @7:17
      wait %free_host[%dst] >= epoch - 2 scope sys @7:17
      for %c in 0..ceil(%own / %CR) {    @7:17
        let %from = rank * %S + %c * %CR @7:17
        copy peer(%dst).%a_all{epoch % 2}[%from..min(%from + %CR, rank * %S + %own), 0..K] <- %a[%from..min(%from + %CR, rank * %S + %own), 0..K] @7:17
        signal peer(%dst).%a_arrived[rank * %CH + %c] = epoch scope sys after performed @7:17
      }
    }
  }
  agent gemm on ctas {
    for %t in cta..%T step ctas {        @6:17
      row (%m, %n, %first, %last) = %tiles[%t] @6:17
      let %m0 = %m * 128                 @6:17
      let %m1 = min(%m0 + 128, M)        @6:17
      let %n0 = %n * 256                 @6:17
      let %n1 = min(%n0 + 256, N)        @6:17
      wait %a_arrived[%first..%last] >= epoch scope sys @7:17
      fence proxy.async                  @7:17
      mainloop %a_all{epoch % 2}[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @8:19
      store %c[%m0..%m1, %n0..%n1] <- %e3 @9:9
    }
  } exit {
    for %p in 0..world {                 @7:17
      signal peer(%p).%free_host[rank] = epoch scope sys after performed @7:17
    }
  }
}
