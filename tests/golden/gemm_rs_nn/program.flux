program @gemm_rs_nn for sm_90a {
  tile (128, 256, 64) stages 4 consumers cooperative
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %MT = ceil(M / 128)
  let %NT = ceil(N / 256)
  let %T = %MT * %NT
  buffer %a : bf16[M, K] in
  buffer %b : bf16[K, N] in
  buffer %c : bf16[%own, N] out first_row rank * %S
  buffer %c_partial : bf16[2, world][%S, N] symmetric first_row rank * %S
  signal %c_landed[world * (ceil(M / 128) * ceil(N / 256))] device
  signal %free[world] device
  table %tiles[%T] order next_rank_first (%tm, %tn) -> (0, 0)
  %e0 = acc 0
  %e1 = sum
  agent gemm on ctas {
    wait %free[0..world] >= epoch - 2 scope sys
    for %t in cta..%T step ctas {
      row (%m, %n, %first, %last) = %tiles[%t]
      let %m0 = %m * 128
      let %m1 = min(%m0 + 128, M)
      let %n0 = %n * 256
      let %n1 = min(%n0 + 256, N)
      mainloop %a[%m0..%m1, 0..K] * %b[0..K, %n0..%n1]
      for %o in %m0 / %S..(%m1 - 1) / %S + 1 {
        if %o != rank {
          store peer(%o).%c_partial{epoch % 2, rank}[max(%o * %S, %m0)..min(%o * %S + %S, %m1), %n0..%n1] <- %e0
          signal peer(%o).%c_landed[rank * %T + %m * %NT + %n] += 8 scope sys after performed
        }
      }
      let %lo = max(rank * %S, %m0)
      let %hi = min(rank * %S + %S, %m1)
      if %lo < %hi {
        for %s in 0..world {
          if %s != rank {
            wait %c_landed[%s * %T + %m * %NT + %n] >= epoch * 8 scope sys
          }
        }
        sum %i own %e0 from %c_partial{epoch % 2, %i}[%lo..%hi, %n0..%n1]
        store %c[%lo..%hi, %n0..%n1] <- %e1
      }
    }
  } exit {
    for %p in 0..world {
      signal peer(%p).%free[rank] = epoch scope sys after performed
    }
  }
}
