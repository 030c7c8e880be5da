; All ranks raise one counter, peer after peer: one that is through raises for its next call
;   before a slow one has raised for this.
; seen: CUTLASS DistGEMM (a full barrier that adds to counters of its peers): a hazard
; rule: count-not-exact
; base: gather_barrier_passes
program @gather_barrier for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[%own, K] in first_row rank * %S @13:3
  buffer %b : bf16[N, K] in @14:3
  buffer %c : bf16[M, N] out @15:3
  buffer %a_all : bf16[M, K] symmetric @16:3
  signal %here[world] host
  signal %arrived[world] device
  table %tiles[%T] order own_shard_first (%tm, %tn) -> (%tm * 8 / %S, (min(%tm * 8 + 8, M) - 1) / %S + 1)
  %e0 = acc 0 @20:3
  agent push on copy_engine {
    for %p in 0..world { @22:5
      signal peer(%p).%here[0] += 1 scope sys after performed @23:7 ; error[count-not-exact]: rank 0, the copy engine of `push` may raise `%here[0]` before rank 1, the copy engine of `push` does, and end a wait for 2 in its place
    }
    wait %here[0] >= world * epoch scope sys @25:5
    for %h in 0..world { @26:5
      let %dst = (rank + %h) % world @27:7
      copy peer(%dst).%a_all[rank * %S..rank * %S + %own, 0..K] <- %a[rank * %S..rank * %S + %own, 0..K] @28:7
      signal peer(%dst).%arrived[rank] = epoch scope sys after performed @29:7
    }
  }
  agent gemm on ctas {
    for %t in cta..%T step ctas { @33:5
      row (%m, %n, %first, %last) = %tiles[%t] @34:7
      let %m0 = %m * 8 @35:7
      let %m1 = min(%m0 + 8, M) @36:7
      let %n0 = %n * 8 @37:7
      let %n1 = min(%n0 + 8, N) @38:7
      for %s in %first..%last { @39:7
        wait %arrived[%s] >= epoch scope sys @40:9
      }
      fence proxy.async @42:7
      mainloop %a_all[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @43:7
      store %c[%m0..%m1, %n0..%n1] <- %e0 @44:7
    }
  }
}
