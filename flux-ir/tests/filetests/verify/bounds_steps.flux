; A loop without end, as good as.
program @gemm for host { ; error[bounds]: the check would take 22000000009 steps, expected at most 268435456
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
    for %x in 0..2000000000 { @15:5
    }
    for %y in 0..2000000000 { @17:5
      for %z in 0..9 { @18:7
      }
    }
    for %t in cta..%T step ctas { @21:5
      row (%m, %n, %first, %last) = %tiles[%t] @22:7
      let %m0 = %m * 8 @23:7
      let %m1 = min(%m0 + 8, M) @24:7
      let %n0 = %n * 8 @25:7
      let %n1 = min(%n0 + 8, N) @26:7
      mainloop %a[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @27:7
      store %c[%m0..%m1, %n0..%n1] <- %e0 @28:7
    }
  }
}
