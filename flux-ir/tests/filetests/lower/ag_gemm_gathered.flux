kernel @ag_gemm_gathered(%a: &gathered<bf16>, %b: &global<bf16>, %x: &mut global<bf16>, %c: &mut global<bf16>) { @2:8
  for tile in %c {                       @4:9
    %0 = wait %a                         @5:19
    %1 = gemm %0, %b.t                   @6:26
    store %c, %1                         @6:15
    keep %x, %0                          @3:7
  }
}

program @ag_gemm_gathered for sm_90a {
  tile (128, 256, 64) stages 4 consumers cooperative
  vars %S, %own, %CR, %CH, %h, %dst, %c, %from, %PC, %PA, %PR, %PS, %q, %src, %i, %r, %rows, %from2, %to, %k0, %MT, %NT, %T, %tm, %tn, %t, %m, %n, %first, %last, %m0, %m1, %n0, %n1, %p
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %CR = max(%S, 1)
  let %CH = ceil(%S / %CR)
  let %PC = min(K, 3072)
  let %PA = ceil(K / %PC)
  let %PR = max(min(min(world * %S * %PA / (ctas * 4), 16), %S), 1)
  let %PS = ceil(%S / %PR) * %PA
  let %MT = ceil(M / 128)
  let %NT = ceil(N / 256)
  let %T = %MT * %NT
  buffer %a : bf16[%own, K] in first_row rank * %S
  buffer %b : bf16[N, K] in
  buffer %x : bf16[M, K] out
  buffer %c : bf16[M, N] out
  buffer %a_all : bf16[2][M, K] symmetric
  signal %free_host[world] host
  signal %a_arrived[world * %CH] device
  signal %kept[1] device
  table %tiles[%T] order own_shard_first (%tm, %tn) -> (%tm * 128 / %S * %CH + %tm * 128 % %S / %CR, (min(%tm * 128 + 128, M) - 1) / %S * %CH + (min(%tm * 128 + 128, M) - 1) % %S / %CR + 1)
  %e0 = acc 0                            @6:26
  agent push_a on copy_engine {
    for %h in 0..world {                 @5:19
      let %dst = (rank + %h) % world     @5:19
      wait %free_host[%dst] >= epoch - 2 scope sys @5:19
      for %c in 0..ceil(%own / %CR) {    @5:19
        let %from = rank * %S + %c * %CR @5:19
        copy peer(%dst).%a_all{epoch % 2}[%from..min(%from + %CR, rank * %S + %own), 0..K] <- %a[%from..min(%from + %CR, rank * %S + %own), 0..K] @5:19
        signal peer(%dst).%a_arrived[rank * %CH + %c] = epoch scope sys after performed @5:19
      }
    }
  }
  agent keep on copy_warps {
    for %q in cta..world * %PS step ctas { @3:7
      let %src = (rank + world - %q / %PS) % world @3:7
      let %i = %q % %PS                  @3:7
      let %r = %i / %PA * %PR            @3:7
      let %rows = max(min(M - %src * %S, %S), 0) @3:7
      let %from2 = %src * %S + min(%r, %rows) @3:7
      let %to = %src * %S + min(%r + %PR, %rows) @3:7
      let %k0 = %i % %PA * %PC           @3:7
      if %from2 < %to {                  @3:7
        wait %a_arrived[%from2 / %S * %CH + %from2 % %S / %CR..(max(%to, 1) - 1) / %S * %CH + (max(%to, 1) - 1) % %S / %CR + 1] >= epoch scope sys @3:7
        copy %x[%from2..%to, %k0..min(%k0 + %PC, K)] <- %a_all{epoch % 2}[%from2..%to, %k0..min(%k0 + %PC, K)] @3:7
      }
    }
    signal %kept[0] += 3 scope sys after performed @3:7
  }
  agent gemm on ctas {
    for %t in cta..%T step ctas {        @4:9
      row (%m, %n, %first, %last) = %tiles[%t] @4:9
      let %m0 = %m * 128                 @4:9
      let %m1 = min(%m0 + 128, M)        @4:9
      let %n0 = %n * 256                 @4:9
      let %n1 = min(%n0 + 256, N)        @4:9
      wait %a_arrived[%first..%last] >= epoch scope sys @5:19
      fence proxy.async                  @5:19
      mainloop %a_all{epoch % 2}[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @6:26
      store %c[%m0..%m1, %n0..%n1] <- %e0 @6:15
    }
  } exit {
    wait %kept[0] >= epoch * ctas * 3 scope sys @3:7
    for %p in 0..world {                 @5:19
      signal peer(%p).%free_host[rank] = epoch scope sys after performed @5:19
    }
  }
}
