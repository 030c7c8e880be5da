; The next round is stored over a staging buffer that the copy has not read.
; seen: DeepEP #657 (tma_copy race; its kind)
; rule: overwrite-before-read
; base: staged_copy_passes
program @staged_copy for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[M, K] in @10:3
  buffer %b : bf16[N, K] in @11:3
  buffer %stage : bf16[M, N] symmetric @12:3
  buffer %sent : bf16[2][M, N] symmetric @13:3
  signal %filled[1] host
  signal %drained[1] device
  signal %got[1] host
  table %tiles[%T] order row_major (%tm, %tn) -> (0, 0)
  %e0 = acc 0 @18:3
  agent gemm on ctas {
    for %r in 0..2 { @20:5
      fence proxy.async @20:5
      for %t in cta..%T step ctas { @21:7
        row (%m, %n, %first, %last) = %tiles[%t] @22:9
        let %m0 = %m * 8 @23:9
        let %m1 = min(%m0 + 8, M) @24:9
        let %n0 = %n * 8 @25:9
        let %n1 = min(%n0 + 8, N) @26:9
        mainloop %a[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @27:9
        store %stage[%m0..%m1, %n0..%n1] <- %e0 @28:9 ; error[overwrite-before-read]: rank 0, cta 0 of `gemm` writes rows 0..1, columns 0..1 of `%stage` on rank 0, which rank 0, the copy engine of `send` may not have read yet in launch 1
        signal %filled[0] += 1 scope sys after performed @29:9 ; error[count-not-exact]: rank 0, cta 0 of `gemm` may raise `%filled[0]` before rank 0, cta 1 of `gemm` does, and end a wait for 2 in its place
      }
    }
  }
  agent send on copy_engine {
    let %dst = (rank + 1) % world @34:5
    for %r in 0..2 { @35:5
      wait %filled[0] >= %T * (2 * epoch - 1 + %r) scope sys @36:7
      copy peer(%dst).%sent{%r}[0..M, 0..N] <- %stage[0..M, 0..N] @37:7 ; error[read-before-arrival]: rank 0, the copy engine of `send` reads rows 0..3, columns 0..9 of `%stage` on rank 0, and nothing it waits for says that element (0, 0) has been written
      signal %drained[0] = 2 * epoch - 1 + %r scope sys after read @38:7
    }
    signal peer(%dst).%got[0] = epoch scope sys after performed @40:5
  }
}
