program @ag_gemm for sm_90a {
  tile (128, 256, 64) stages 4 consumers cooperative
  vars %S, %own, %CR, %CH, %PC, %PA, %PR, %PS, %q, %dst, %c, %i, %r, %from, %to, %k0, %MT, %NT, %T, %tm, %tn, %t, %m, %n, %first, %last, %m0, %m1, %n0, %n1, %p
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %CR = max(min(%S, 128), 1)
  let %CH = ceil(%S / %CR)
  let %PC = min(K, 2048)
  let %PA = ceil(K / %PC)
  let %PR = max(min(min(world * %S * %PA / (ctas * 4), 16), %CR), 1)
  let %PS = ceil(%CR / %PR) * %PA
  let %MT = ceil(M / 128)
  let %NT = ceil(N / 256)
  let %T = %MT * %NT
  buffer %a : bf16[%own, K] in first_row rank * %S
  buffer %b : bf16[N, K] in
  buffer %c : bf16[M, N] out
  buffer %a_all : bf16[2][M, K] symmetric
  signal %free_copies[world] device
  signal %a_arrived[world * %CH] device
  table %tiles[%T] order own_shard_first (%tm, %tn) -> (%tm * 128 / %S * %CH + %tm * 128 % %S / %CR, (min(%tm * 128 + 128, M) - 1) / %S * %CH + (min(%tm * 128 + 128, M) - 1) % %S / %CR + 1)
  %e0 = acc 0
  agent push on tma {
    wait %free_copies[0..world] >= epoch - 2 scope sys
    fence proxy.async
    for %q in cta..world * (%CH * %PS) step ctas {
      let %dst = (rank + %q / (%CH * %PS)) % world
      let %c = %q % (%CH * %PS) / %PS
      let %i = %q % %PS
      let %r = %c * %CR + %i / %PA * %PR
      let %from = rank * %S + min(%r, %own)
      let %to = rank * %S + min(min(%r + %PR, (%c + 1) * %CR), %own)
      let %k0 = %i % %PA * %PC
      copy peer(%dst).%a_all{epoch % 2}[%from..%to, %k0..min(%k0 + %PC, K)] <- %a[%from..%to, %k0..min(%k0 + %PC, K)]
      signal peer(%dst).%a_arrived[rank * %CH + %c] += 1 scope sys after performed
    }
  }
  agent gemm on ctas {
    for %t in cta..%T step ctas {
      row (%m, %n, %first, %last) = %tiles[%t]
      let %m0 = %m * 128
      let %m1 = min(%m0 + 128, M)
      let %n0 = %n * 256
      let %n1 = min(%n0 + 256, N)
      wait %a_arrived[%first..%last] >= epoch * %PS scope sys
      fence proxy.async
      mainloop %a_all{epoch % 2}[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T
      store %c[%m0..%m1, %n0..%n1] <- %e0
    }
  } exit {
    for %p in 0..world {
      signal peer(%p).%free_copies[rank] = epoch scope sys after performed
    }
  }
}
