; One staging buffer serves two rounds: it is filled again once the copy has read it.
program @staged_copy for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[M, K] in @7:3
  buffer %b : bf16[N, K] in @8:3
  buffer %stage : bf16[M, N] symmetric @9:3
  buffer %sent : bf16[2][M, N] symmetric @10:3
  signal %filled[1] host
  signal %drained[1] device
  signal %got[1] host
  table %tiles[%T] order row_major (%tm, %tn) -> (0, 0)
  %e0 = acc 0 @15:3
  agent gemm on ctas {
    for %r in 0..2 { @17:5
      wait %drained[0] >= 2 * epoch - 2 + %r scope sys @18:7
      fence proxy.async @18:7
      for %t in cta..%T step ctas { @19:7
        row (%m, %n, %first, %last) = %tiles[%t] @20:9
        let %m0 = %m * 8 @21:9
        let %m1 = min(%m0 + 8, M) @22:9
        let %n0 = %n * 8 @23:9
        let %n1 = min(%n0 + 8, N) @24:9
        mainloop %a[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @25:9
        store %stage[%m0..%m1, %n0..%n1] <- %e0 @26:9
        signal %filled[0] += 1 scope sys after performed @27:9
      }
    }
  }
  agent send on copy_engine {
    let %dst = (rank + 1) % world @32:5
    for %r in 0..2 { @33:5
      wait %filled[0] >= %T * (2 * epoch - 1 + %r) scope sys @34:7
      copy peer(%dst).%sent{%r}[0..M, 0..N] <- %stage[0..M, 0..N] @35:7
      signal %drained[0] = 2 * epoch - 1 + %r scope sys after read @36:7
    }
    signal peer(%dst).%got[0] = epoch scope sys after performed @38:5
  }
}
