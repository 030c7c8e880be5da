kernel @ag_gemm_rs_gated(%x: &gathered<f16>, %w1: &global<f16>, %w3: &global<f16>, %scale: f32, %y: &mut scattered<f16>) { @3:8
  for tile in %y {                       @4:17
    %0 = wait %x                         @5:21
    %1 = gemm %0, %w1.t                  @6:9
    %2 = gemm %0, %w3.t                  @7:9
    %3 = silu %1                         @8:9
    %4 = mul %3, %2                      @8:9
    %5 = scalar %scale                   @8:9
    %6 = mul %4, %5                      @8:9
    %7 = reduce %y, %6                   @9:9
    store %y, %7                         @9:9
  }
}

program @ag_gemm_rs_gated for sm_90a {
  tile (128, 128, 64) stages 4 consumers cooperative
  vars %S, %own, %CR, %CH, %h, %dst, %c, %from, %MT, %NT, %T, %tm, %tn, %t, %m, %n, %first, %last, %m0, %m1, %n0, %n1, %o, %lo, %hi, %s, %i, %p, %p2
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %CR = max(%S, 1)
  let %CH = ceil(%S / %CR)
  let %MT = ceil(M / 128)
  let %NT = ceil(N / 128)
  let %T = %MT * %NT
  buffer %x : f16[%own, K] in first_row rank * %S
  buffer %w1 : f16[N, K] in
  buffer %w3 : f16[N, K] in
  buffer %y : f16[%own, N] out first_row rank * %S
  buffer %x_all : f16[2][M, K] symmetric
  buffer %y_partial : f16[2, world][%S, N] symmetric first_row rank * %S
  scalar %scale
  signal %free_host[world] host
  signal %x_arrived[world * %CH] device
  signal %y_landed[world * (ceil(M / 128) * ceil(N / 128))] device
  signal %free[world] device
  table %tiles[%T] order next_rank_first (%tm, %tn) -> (%tm * 128 / %S * %CH + %tm * 128 % %S / %CR, (min(%tm * 128 + 128, M) - 1) / %S * %CH + (min(%tm * 128 + 128, M) - 1) % %S / %CR + 1)
  %e0 = acc 0                            @6:9
  %e1 = acc 1                            @7:9
  %e2 = silu %e0                         @8:9
  %e3 = mul %e2, %e1                     @8:9
  %e4 = scalar %scale                    @8:9
  %e5 = mul %e3, %e4                     @8:9
  %e6 = sum                              @9:9
  agent push_x on copy_engine {
    for %h in 0..world {                 @5:21
      let %dst = (rank + %h) % world     @5:21
      wait %free_host[%dst] >= epoch - 2 scope sys @5:21
      for %c in 0..ceil(%own / %CR) {    @5:21
        let %from = rank * %S + %c * %CR @5:21
        copy peer(%dst).%x_all{epoch % 2}[%from..min(%from + %CR, rank * %S + %own), 0..K] <- %x[%from..min(%from + %CR, rank * %S + %own), 0..K] @5:21
        signal peer(%dst).%x_arrived[rank * %CH + %c] = epoch scope sys after performed @5:21
      }
    }
  }
  agent gemm on ctas {
    wait %free[0..world] >= epoch - 2 scope sys @9:9
    for %t in cta..%T step ctas {        @4:17
      row (%m, %n, %first, %last) = %tiles[%t] @4:17
      let %m0 = %m * 128                 @4:17
      let %m1 = min(%m0 + 128, M)        @4:17
      let %n0 = %n * 128                 @4:17
      let %n1 = min(%n0 + 128, N)        @4:17
      wait %x_arrived[%first..%last] >= epoch scope sys @5:21
      fence proxy.async                  @5:21
      mainloop %x_all{epoch % 2}[%m0..%m1, 0..K] * %w1[%n0..%n1, 0..K]^T, %x_all{epoch % 2}[%m0..%m1, 0..K] * %w3[%n0..%n1, 0..K]^T @6:9
      for %o in %m0 / %S..(%m1 - 1) / %S + 1 { @9:9
        if %o != rank {                  @9:9
          store peer(%o).%y_partial{epoch % 2, rank}[max(%o * %S, %m0)..min(%o * %S + %S, %m1), %n0..%n1] <- %e5 @9:9
          signal peer(%o).%y_landed[rank * %T + %m * %NT + %n] += 8 scope sys after performed @9:9
        }
      }
      let %lo = max(rank * %S, %m0)      @9:9
      let %hi = min(rank * %S + %S, %m1) @9:9
      if %lo < %hi {                     @9:9
        for %s in 0..world {             @9:9
          if %s != rank {                @9:9
            wait %y_landed[%s * %T + %m * %NT + %n] >= epoch * 8 scope sys @9:9
          }
        }
        sum %i own %e5 from %y_partial{epoch % 2, %i}[%lo..%hi, %n0..%n1] @9:9
        store %y[%lo..%hi, %n0..%n1] <- %e6 @9:9
      }
    }
  } exit {
    for %p in 0..world {                 @9:9
      signal peer(%p).%free[rank] = epoch scope sys after performed @9:9
    }
    for %p2 in 0..world {                @5:21
      signal peer(%p2).%free_host[rank] = epoch scope sys after performed @5:21
    }
  }
}
