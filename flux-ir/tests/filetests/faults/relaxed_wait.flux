; A wait that synchronizes with nobody outside its CTA, the nearest to a relaxed poll that a
;   Program can say.
; seen: ThunderKittens `wait` (relaxed), CuTeDSL GEMM-RS tile wait, Flux spin loops (one acquire,
;   then relaxed polling)
; rule: scope-too-narrow
; base: gather_barrier_passes
program @gather_barrier for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[%own, K] in first_row rank * %S @14:3
  buffer %b : bf16[N, K] in @15:3
  buffer %c : bf16[M, N] out @16:3
  buffer %a_all : bf16[M, K] symmetric @17:3
  signal %here[world] host
  signal %arrived[world] device
  table %tiles[%T] order own_shard_first (%tm, %tn) -> (%tm * 8 / %S, (min(%tm * 8 + 8, M) - 1) / %S + 1)
  %e0 = acc 0 @21:3
  agent push on copy_engine {
    for %p in 0..world { @23:5
      signal peer(%p).%here[rank] = epoch scope sys after performed @24:7
    }
    wait %here[0..world] >= epoch scope sys @26:5
    for %h in 0..world { @27:5
      let %dst = (rank + %h) % world @28:7
      copy peer(%dst).%a_all[rank * %S..rank * %S + %own, 0..K] <- %a[rank * %S..rank * %S + %own, 0..K] @29:7
      signal peer(%dst).%arrived[rank] = epoch scope sys after performed @30:7
    }
  }
  agent gemm on ctas {
    for %t in cta..%T step ctas { @34:5
      row (%m, %n, %first, %last) = %tiles[%t] @35:7
      let %m0 = %m * 8 @36:7
      let %m1 = min(%m0 + 8, M) @37:7
      let %n0 = %n * 8 @38:7
      let %n1 = min(%n0 + 8, N) @39:7
      for %s in %first..%last { @40:7
        wait %arrived[%s] >= epoch scope cta @41:9 ; error[scope-too-narrow]: rank 0, cta 0 of `gemm` waits for `%arrived[0]` at scope cta, expected sys: rank 0, the copy engine of `push` raises it
      }
      fence proxy.async @43:7
      mainloop %a_all[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @44:7
      store %c[%m0..%m1, %n0..%n1] <- %e0 @45:7
    }
  }
}
