; The signal travels behind the data.
program @ag_gemm_gelu for host {
  tile (8, 8, 4) stages 4 consumers cooperative node 1
  vars %S, %own, %CR, %CH, %PC, %PA, %PR, %PS, %q, %dst, %c, %i, %r, %from, %to, %k0, %MT, %NT, %T, %tm, %tn, %t, %m, %n, %first, %last, %m0, %m1, %n0, %n1, %p
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %CR = max(min(%S, 8), 1)
  let %CH = ceil(%S / %CR)
  let %PC = K
  let %PA = 1
  let %PR = %CR
  let %PS = 1
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[%own, K] in first_row rank * %S
  buffer %b : bf16[N, K] in
  buffer %bias : f32[1, N] in
  buffer %c : bf16[M, N] out
  buffer %a_all : bf16[2][M, K] symmetric
  signal %free_copies[world] device
  signal %a_arrived[world * %CH] device
  table %tiles[%T] order own_shard_first (%tm, %tn) -> (%tm * 8 / %S * %CH + %tm * 8 % %S / %CR, (min(%tm * 8 + 8, M) - 1) / %S * %CH + (min(%tm * 8 + 8, M) - 1) % %S / %CR + 1)
  %e0 = acc 0                            @8:19
  %e1 = cols %bias                       @9:36
  %e2 = add %e0, %e1                     @9:34
  %e3 = gelu %e2                         @9:23
  agent push on copy_warps {
    wait %free_copies[0..world] >= epoch - 2 scope sys @7:17
    for %q in cta..world * (%CH * %PS) step ctas { @7:17
      let %dst = (rank + %q / (%CH * %PS)) % world @7:17
      let %c = %q % (%CH * %PS) / %PS    @7:17
      let %i = %q % %PS                  @7:17
      let %r = %c * %CR + %i / %PA * %PR @7:17
      let %from = rank * %S + %r         @7:17
      let %to = rank * %S + min(min(%r + %PR, (%c + 1) * %CR), %own) @7:17
      let %k0 = %i % %PA * %PC           @7:17
      if %dst / 1 == rank / 1 {          @7:17
        copy peer(%dst).%a_all{epoch % 2}[%from..%to, %k0..min(%k0 + %PC, K)] <- %a[%from..%to, %k0..min(%k0 + %PC, K)] @7:17
        signal peer(%dst).%a_arrived[rank * %CH + %c] += 3 scope sys after performed @7:17
      }
      if %dst / 1 != rank / 1 {          @7:17
        wait %a_arrived[rank * %CH + %c] >= epoch * %PS * 3 scope sys @7:17
        copy remote(%dst).%a_all{epoch % 2}[%from..%to, %k0..min(%k0 + %PC, K)] <- %a_all{epoch % 2}[%from..%to, %k0..min(%k0 + %PC, K)] @7:17
        signal remote(%dst).%a_arrived[rank * %CH + %c] += 3 scope sys after delivered @7:17
      }
    }
  }
  agent gemm on ctas {
    for %t in cta..%T step ctas {        @6:17
      row (%m, %n, %first, %last) = %tiles[%t] @6:17
      let %m0 = %m * 8                   @6:17
      let %m1 = min(%m0 + 8, M)          @6:17
      let %n0 = %n * 8                   @6:17
      let %n1 = min(%n0 + 8, N)          @6:17
      wait %a_arrived[%first..%last] >= epoch * %PS * 3 scope sys @7:17
      fence proxy.async                  @7:17
      mainloop %a_all{epoch % 2}[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @8:19
      store %c[%m0..%m1, %n0..%n1] <- %e3 @9:9
    }
  } exit {
    for %p in 0..world {                 @7:17
      if %p / 1 == rank / 1 {            @7:17
        signal peer(%p).%free_copies[rank] += 1 scope sys after performed @7:17
      }
      if %p / 1 != rank / 1 {            @7:17
        signal remote(%p).%free_copies[rank] += 1 scope sys after delivered @7:17
      }
    }
  }
}
