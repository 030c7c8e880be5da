program @gemm_tn_bf16 for sm_90a {
  tile (128, 256, 64) stages 4 consumers cooperative
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %MT = ceil(M / 128)
  let %NT = ceil(N / 256)
  let %T = %MT * %NT
  buffer %a : bf16[K, M] in
  buffer %b : bf16[K, N] in
  buffer %c : bf16[M, N] out
  table %tiles[%T] order grouped(16) (%tm, %tn) -> (0, 0)
  %e0 = acc 0
  agent gemm on ctas {
    for %t in cta..%T step ctas {
      row (%m, %n, %first, %last) = %tiles[%t]
      let %m0 = %m * 128
      let %m1 = min(%m0 + 128, M)
      let %n0 = %n * 256
      let %n1 = min(%n0 + 256, N)
      mainloop %a[0..K, %m0..%m1]^T * %b[0..K, %n0..%n1]
      store %c[%m0..%m1, %n0..%n1] <- %e0
    }
  }
}
