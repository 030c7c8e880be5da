kernel @low_latency(
  %a: &global<bf16> @26:9,
  %b: &global<bf16> @27:9,
  %bias: &global<f32> @28:9,
  %c: &mut global<bf16> @29:9
) {                                      @25:12
  protocol {
    buffer %parts : bf16[world][M, N] symmetric @31:21
  }
  for tile in %c {                       @32:9
    %0 = gemm %a, %b.t                   @33:24
    put %0 in %parts to (rank + %"put.hop") % world for 1..world @35:23
    %2 = total %parts own %0             @37:33
    %3 = cols %bias                      @37:56
    %4 = add %2, %3                      @37:49
    store %c, %4                         @37:15
  }
}

program @low_latency for sm_90a {
  tile (128, 256, 64) stages 4 consumers cooperative
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %MT = ceil(M / 128)
  let %NT = ceil(N / 256)
  let %T = %MT * %NT
  buffer %a : bf16[M, K] in              @26:9
  buffer %b : bf16[N, K] in              @27:9
  buffer %bias : f32[1, N] in            @28:9
  buffer %c : bf16[M, N] out             @29:9
  buffer %parts : bf16[2, world][M, N] symmetric @31:21
  signal %parts_landed[world * (ceil(M / 128) * ceil(N / 256))] device by %parts
  signal %free[world] device
  table %tiles[%T] order grouped(16) (%tm, %tn) -> (0, 0)
  %e0 = acc 0                            @33:24
  %e1 = sum                              @37:33
  %e2 = cols %bias                       @37:56
  %e3 = add %e1, %e2                     @37:49
  agent gemm on ctas {
    wait %free[0..world] >= epoch - 2 scope sys @37:33
    for %t in cta..%T step ctas {        @32:9
      row (%m, %n, %first, %last) = %tiles[%t] @32:9
      let %m0 = %m * 128                 @32:9
      let %m1 = min(%m0 + 128, M)        @32:9
      let %n0 = %n * 256                 @32:9
      let %n1 = min(%n0 + 256, N)        @32:9
      mainloop %a[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @33:24
      for %h in 1..world {               @35:23
        store peer((rank + %h) % world).%parts{epoch % 2, rank}[%m0..%m1, %n0..%n1] <- %e0 @35:23
      }
      for %h2 in 1..world {              @35:23
        signal peer((rank + %h2) % world).%parts_landed[rank * %T + %m * %NT + %n] += 8 scope sys after performed @35:23
      }
      for %s in 0..world {               @37:33
        if %s != rank {                  @37:33
          wait %parts_landed[%s * %T + %m * %NT + %n] >= epoch * 8 scope sys @37:33
        }
      }
      sum %s own %e0 from %parts{epoch % 2, %s}[%m0..%m1, %n0..%n1] @37:33
      store %c[%m0..%m1, %n0..%n1] <- %e3 @37:15
    }
  } exit {
    for %p in 0..world {                 @37:33
      signal peer(%p).%free[rank] = epoch scope sys after performed @37:33
    }
  }
}
