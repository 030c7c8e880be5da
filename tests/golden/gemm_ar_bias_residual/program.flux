program @gemm_ar_bias_residual for sm_90a {
  tile (128, 176, 64) stages 5 consumers cooperative
  vars %S, %own, %MT, %NT, %T, %tm, %tn, %t, %m, %n, %first, %last, %m0, %m1, %n0, %n1, %o, %lo, %hi, %s, %i, %h, %p, %PA, %PR, %PH, %PT, %q, %o2, %first2, %from, %to, %c0, %cw, %d, %m2
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %MT = ceil(M / 128)
  let %NT = ceil(N / 176)
  let %T = %MT * %NT
  let %PA = min(ceil(%NT / 17), %NT)
  let %PR = max(min(M * %PA / (ctas * 4), 16), 1)
  let %PH = ceil(%S / %PR)
  let %PT = max(world - 1, 1) * %PA
  buffer %a : bf16[M, K] in
  buffer %b : bf16[N, K] in
  buffer %bias : f32[1, N] in
  buffer %residual : bf16[M, N] in
  buffer %c : bf16[M, N] out
  buffer %c_partial : bf16[2, world][%S, N] symmetric first_row rank * %S
  buffer %c_total : bf16[2][%S, N] symmetric first_row rank * %S
  signal %c_landed[world * (ceil(M / 128) * ceil(N / 176))] device
  signal %c_summed[world * (ceil(M / 128) * ceil(N / 176))] device
  signal %c_taken[1] device
  signal %free[world] device
  table %tiles[%T] order next_rank_first (%tm, %tn) -> (0, 0)
  %e0 = acc 0
  %e1 = sum
  %e2 = cols %bias
  %e3 = add %e1, %e2
  %e4 = load %residual
  %e5 = add %e3, %e4
  agent gemm on ctas {
    wait %free[0..world] >= epoch - 2 scope sys
    for %t in cta..%T step ctas {
      row (%m, %n, %first, %last) = %tiles[%t]
      let %m0 = %m * 128
      let %m1 = min(%m0 + 128, M)
      let %n0 = %n * 176
      let %n1 = min(%n0 + 176, N)
      mainloop %a[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T
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
        store %c[%lo..%hi, %n0..%n1] <- %e5
        store %c_total{epoch % 2}[%lo..%hi, %n0..%n1] <- %e5
        for %h in 1..world {
          signal peer((rank + %h) % world).%c_summed[rank * %T + %m * %NT + %n] += 8 scope sys after performed
        }
      }
    }
  } exit {
    wait %c_taken[0] >= epoch * ctas * 3 scope sys
    for %p in 0..world {
      signal peer(%p).%free[rank] = epoch scope sys after performed
    }
  }
  agent bring on copy_warps {
    for %q in cta..%PH * (world - 1) * %PA step ctas {
      let %o2 = (rank + %q % %PT / %PA + 1) % world
      let %first2 = %o2 * %S
      let %from = min(%first2 + %q / %PT * %PR, M)
      let %to = min(%first2 + min(%q / %PT * %PR + %PR, %S), M)
      let %c0 = %q % %PT % %PA * 17
      let %cw = min(%NT - %c0, 17)
      if %from < %to {
        for %d in 0..2 {
          let %m2 = %from / 128 + %d
          if %m2 * 128 < %to {
            wait %c_summed[%o2 * %T + %m2 * %NT + %c0..%o2 * %T + %m2 * %NT + %c0 + %cw] >= epoch * 8 scope sys
          }
        }
        copy %c[%from..%to, %c0 * 176..min((%c0 + %cw) * 176, N)] <- peer(%o2).%c_total{epoch % 2}[%from..%to, %c0 * 176..min((%c0 + %cw) * 176, N)]
      }
    }
    signal %c_taken[0] += 3 scope sys after performed
  }
}
