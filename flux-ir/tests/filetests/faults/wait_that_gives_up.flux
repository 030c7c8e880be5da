; A wait that runs out of time and goes on, the same as none.
; seen: TransformerEngine (a wait that times out prints, then continues)
; rule: read-before-arrival
; base: gather_barrier_passes
program @gather_barrier for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[%own, K] in first_row rank * %S @12:3
  buffer %b : bf16[N, K] in @13:3
  buffer %c : bf16[M, N] out @14:3
  buffer %a_all : bf16[M, K] symmetric @15:3
  signal %here[world] host
  signal %arrived[world] device
  table %tiles[%T] order own_shard_first (%tm, %tn) -> (%tm * 8 / %S, (min(%tm * 8 + 8, M) - 1) / %S + 1)
  %e0 = acc 0 @19:3
  agent push on copy_engine {
    for %p in 0..world { @21:5
      signal peer(%p).%here[rank] = epoch scope sys after performed @22:7
    }
    wait %here[0..world] >= epoch scope sys @24:5
    for %h in 0..world { @25:5
      let %dst = (rank + %h) % world @26:7
      copy peer(%dst).%a_all[rank * %S..rank * %S + %own, 0..K] <- %a[rank * %S..rank * %S + %own, 0..K] @27:7
      signal peer(%dst).%arrived[rank] = epoch scope sys after performed @28:7
    }
  }
  agent gemm on ctas {
    for %t in cta..%T step ctas { @32:5
      row (%m, %n, %first, %last) = %tiles[%t] @33:7
      let %m0 = %m * 8 @34:7
      let %m1 = min(%m0 + 8, M) @35:7
      let %n0 = %n * 8 @36:7
      let %n1 = min(%n0 + 8, N) @37:7
      fence proxy.async @38:7
      mainloop %a_all[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @39:7 ; error[read-before-arrival]: rank 0, cta 0 of `gemm` reads rows 0..1, columns 0..1 of `%a_all` on rank 0, and nothing it waits for says that element (0, 0) has been written
      store %c[%m0..%m1, %n0..%n1] <- %e0 @40:7
    }
  }
}
