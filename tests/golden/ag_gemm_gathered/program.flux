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
  %e0 = acc 0
  agent push_a on copy_engine {
    for %h in 0..world {
      let %dst = (rank + %h) % world
      wait %free_host[%dst] >= epoch - 2 scope sys
      for %c in 0..ceil(%own / %CR) {
        let %from = rank * %S + %c * %CR
        copy peer(%dst).%a_all{epoch % 2}[%from..min(%from + %CR, rank * %S + %own), 0..K] <- %a[%from..min(%from + %CR, rank * %S + %own), 0..K]
        signal peer(%dst).%a_arrived[rank * %CH + %c] = epoch scope sys after performed
      }
    }
  }
  agent keep on copy_warps {
    for %q in cta..world * %PS step ctas {
      let %src = (rank + world - %q / %PS) % world
      let %i = %q % %PS
      let %r = %i / %PA * %PR
      let %rows = max(min(M - %src * %S, %S), 0)
      let %from2 = %src * %S + min(%r, %rows)
      let %to = %src * %S + min(%r + %PR, %rows)
      let %k0 = %i % %PA * %PC
      if %from2 < %to {
        wait %a_arrived[%from2 / %S * %CH + %from2 % %S / %CR..(max(%to, 1) - 1) / %S * %CH + (max(%to, 1) - 1) % %S / %CR + 1] >= epoch scope sys
        copy %x[%from2..%to, %k0..min(%k0 + %PC, K)] <- %a_all{epoch % 2}[%from2..%to, %k0..min(%k0 + %PC, K)]
      }
    }
    signal %kept[0] += 3 scope sys after performed
  }
  agent gemm on ctas {
    for %t in cta..%T step ctas {
      row (%m, %n, %first, %last) = %tiles[%t]
      let %m0 = %m * 128
      let %m1 = min(%m0 + 128, M)
      let %n0 = %n * 256
      let %n1 = min(%n0 + 256, N)
      wait %a_arrived[%first..%last] >= epoch scope sys
      fence proxy.async
      mainloop %a_all{epoch % 2}[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T
      store %c[%m0..%m1, %n0..%n1] <- %e0
    }
  } exit {
    wait %kept[0] >= epoch * ctas * 3 scope sys
    for %p in 0..world {
      signal peer(%p).%free_host[rank] = epoch scope sys after performed
    }
  }
}
