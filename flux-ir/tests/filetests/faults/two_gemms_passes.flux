; Two grids of one rank: the second multiplies what the first has stored.
program @two_gemms for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[M, K] in @7:3
  buffer %b : bf16[N, K] in @8:3
  buffer %w : bf16[N, N] in @9:3
  buffer %c : bf16[M, N] out @10:3
  buffer %h : bf16[M, N] symmetric @11:3
  signal %made[1] device
  table %tiles[%T] order row_major (%tm, %tn) -> (0, 0)
  %e0 = acc 0 @14:3
  agent up on ctas {
    for %t in cta..%T step ctas { @16:5
      row (%m, %n, %first, %last) = %tiles[%t] @17:7
      let %m0 = %m * 8 @18:7
      let %m1 = min(%m0 + 8, M) @19:7
      let %n0 = %n * 8 @20:7
      let %n1 = min(%n0 + 8, N) @21:7
      mainloop %a[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @22:7
      store %h[%m0..%m1, %n0..%n1] <- %e0 @23:7
    }
    signal %made[0] += 1 scope gpu after performed @25:5
  }
  agent down on ctas {
    wait %made[0] >= ctas * epoch scope gpu @28:5
    fence proxy.async @29:5
    for %t in cta..%T step ctas { @30:5
      row (%m, %n, %first, %last) = %tiles[%t] @31:7
      let %m0 = %m * 8 @32:7
      let %m1 = min(%m0 + 8, M) @33:7
      let %n0 = %n * 8 @34:7
      let %n1 = min(%n0 + 8, N) @35:7
      mainloop %h[%m0..%m1, 0..N] * %w[%n0..%n1, 0..N]^T @36:7
      store %c[%m0..%m1, %n0..%n1] <- %e0 @37:7
    }
  }
}
