kernel @gemm_ar(%a: &global<bf16>, %b: &global<bf16>, %c: &mut reduced<bf16>) { @3:8
  for tile in %c {                       @4:17
    %0 = gemm %a, %b.t                   @5:21
    %1 = reduce %c, %0                   @5:9
    store %c, %1                         @5:9
  }
}

program @gemm_ar for sm_90a {
  tile (128, 256, 64) stages 4 consumers cooperative
  vars %S, %own, %MT, %NT, %T, %tm, %tn, %t, %m, %n, %first, %last, %m0, %m1, %n0, %n1, %o, %lo, %hi, %s, %i, %h, %p, %PA, %PR, %PH, %PT, %q, %o2, %first2, %from, %to, %c0, %cw, %d, %m2
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %MT = ceil(M / 128)
  let %NT = ceil(N / 256)
  let %T = %MT * %NT
  let %PA = min(ceil(%NT / 12), %NT)
  let %PR = max(min(M * %PA / (ctas * 4), 16), 1)
  let %PH = ceil(%S / %PR)
  let %PT = max(world - 1, 1) * %PA
  buffer %a : bf16[M, K] in
  buffer %b : bf16[N, K] in
  buffer %c : bf16[M, N] out
  buffer %c_partial : bf16[2, world][%S, N] symmetric first_row rank * %S
  buffer %c_total : bf16[2][%S, N] symmetric first_row rank * %S
  signal %c_landed[world * (ceil(M / 128) * ceil(N / 256))] device
  signal %c_summed[world * (ceil(M / 128) * ceil(N / 256))] device
  signal %c_taken[1] device
  signal %free[world] device
  table %tiles[%T] order next_rank_first (%tm, %tn) -> (0, 0)
  %e0 = acc 0                            @5:21
  %e1 = sum                              @5:9
  agent gemm on ctas {
    wait %free[0..world] >= epoch - 2 scope sys @5:9
    for %t in cta..%T step ctas {        @4:17
      row (%m, %n, %first, %last) = %tiles[%t] @4:17
      let %m0 = %m * 128                 @4:17
      let %m1 = min(%m0 + 128, M)        @4:17
      let %n0 = %n * 256                 @4:17
      let %n1 = min(%n0 + 256, N)        @4:17
      mainloop %a[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @5:21
      for %o in %m0 / %S..(%m1 - 1) / %S + 1 { @5:9
        if %o != rank {                  @5:9
          store peer(%o).%c_partial{epoch % 2, rank}[max(%o * %S, %m0)..min(%o * %S + %S, %m1), %n0..%n1] <- %e0 @5:9
          signal peer(%o).%c_landed[rank * %T + %m * %NT + %n] += 8 scope sys after performed @5:9
        }
      }
      let %lo = max(rank * %S, %m0)      @5:9
      let %hi = min(rank * %S + %S, %m1) @5:9
      if %lo < %hi {                     @5:9
        for %s in 0..world {             @5:9
          if %s != rank {                @5:9
            wait %c_landed[%s * %T + %m * %NT + %n] >= epoch * 8 scope sys @5:9
          }
        }
        sum %i own %e0 from %c_partial{epoch % 2, %i}[%lo..%hi, %n0..%n1] @5:9
        store %c[%lo..%hi, %n0..%n1] <- %e1 @5:9
        store %c_total{epoch % 2}[%lo..%hi, %n0..%n1] <- %e1 @5:9
        for %h in 1..world {             @5:9
          signal peer((rank + %h) % world).%c_summed[rank * %T + %m * %NT + %n] += 8 scope sys after performed @5:9
        }
      }
    }
  } exit {
    wait %c_taken[0] >= epoch * ctas * 3 scope sys @5:9
    for %p in 0..world {                 @5:9
      signal peer(%p).%free[rank] = epoch scope sys after performed @5:9
    }
  }
  agent bring on copy_warps {
    for %q in cta..%PH * (world - 1) * %PA step ctas { @5:9
      let %o2 = (rank + %q % %PT / %PA + 1) % world @5:9
      let %first2 = %o2 * %S             @5:9
      let %from = min(%first2 + %q / %PT * %PR, M) @5:9
      let %to = min(%first2 + min(%q / %PT * %PR + %PR, %S), M) @5:9
      let %c0 = %q % %PT % %PA * 12      @5:9
      let %cw = min(%NT - %c0, 12)       @5:9
      if %from < %to {                   @5:9
        for %d in 0..2 {                 @5:9
          let %m2 = %from / 128 + %d     @5:9
          if %m2 * 128 < %to {           @5:9
            wait %c_summed[%o2 * %T + %m2 * %NT + %c0..%o2 * %T + %m2 * %NT + %c0 + %cw] >= epoch * 8 scope sys @5:9
          }
        }
        copy %c[%from..%to, %c0 * 256..min((%c0 + %cw) * 256, N)] <- peer(%o2).%c_total{epoch % 2}[%from..%to, %c0 * 256..min((%c0 + %cw) * 256, N)] @5:9
      }
    }
    signal %c_taken[0] += 3 scope sys after performed @5:9
  }
}
