; The operands disagree about the length of the reduction.
program @gemm for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[M, K] in @9:3
  buffer %b : bf16[N, K] in @10:3
  buffer %c : bf16[M, N] out @11:3
  table %tiles[%T] order grouped(16) (%tm, %tn) -> (0, 0)
  %e0 = acc 0 @13:3
  agent gemm on ctas {
    for %t in cta..%T step ctas { @15:5
      row (%m, %n, %first, %last) = %tiles[%t] @16:7
      let %m0 = %m * 8 @17:7
      let %m1 = min(%m0 + 8, M) @18:7
      let %n0 = %n * 8 @19:7
      let %n1 = min(%n0 + 8, N) @20:7
      mainloop %a[%m0..%m1, 1..K] * %b[%n0..%n1, 0..K]^T @21:7 ; error[dimensions]: rank 0, cta 0 of `gemm` reduces 1..1 of a left and 0..1 of a right operand, expected the same of all
      store %c[%m0..%m1, %n0..%n1] <- %e0 @22:7
    }
  }
}
