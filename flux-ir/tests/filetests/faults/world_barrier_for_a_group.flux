; A group of two meets at a barrier of the whole world.
; seen: vLLM PR #45917 (rendezvous over the world group instead of the tensor-parallel one)
; rule: wait-without-signal
; base: group_barrier_passes
program @group_barrier for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %G = min(world, 2)
  let %out = min(rank / %G, 1)
  let %S = ceil(M / %G)
  let %own = max(min(%S, M - rank * %S), 0)
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[%own, K] in first_row rank * %S @14:3
  buffer %b : bf16[N, K] in @15:3
  buffer %c : bf16[M * (1 - %out), N] out @16:3
  buffer %a_all : bf16[M, K] symmetric @17:3
  signal %here[world] host
  signal %arrived[%G] device
  table %tiles[%T] order row_major (%tm, %tn) -> (%tm * 8 / %S, (min(%tm * 8 + 8, M) - 1) / %S + 1)
  %e0 = acc 0 @21:3
  agent push on copy_engine {
    if rank < %G { @23:5
      for %p in 0..%G { @24:7
        signal peer(%p).%here[rank] = epoch scope sys after performed @25:9
      }
      wait %here[0..world] >= epoch scope sys @27:7 ; error[wait-without-signal]: rank 0, the copy engine of `push` waits for `%here[2]` >= 1, all agents of all ranks raise it to 0 by then
      for %dst in 0..%G { @28:7
        copy peer(%dst).%a_all[rank * %S..rank * %S + %own, 0..K] <- %a[rank * %S..rank * %S + %own, 0..K] @29:9
        signal peer(%dst).%arrived[rank] = epoch scope sys after performed @30:9
      }
    }
  }
  agent gemm on ctas {
    for %t in cta..%T * (1 - %out) step ctas { @35:5
      row (%m, %n, %first, %last) = %tiles[%t] @36:7
      let %m0 = %m * 8 @37:7
      let %m1 = min(%m0 + 8, M) @38:7
      let %n0 = %n * 8 @39:7
      let %n1 = min(%n0 + 8, N) @40:7
      wait %arrived[%first..%last] >= epoch scope sys @41:7
      fence proxy.async @42:7
      mainloop %a_all[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @43:7
      store %c[%m0..%m1, %n0..%n1] <- %e0 @44:7
    }
  }
}
