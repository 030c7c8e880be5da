; A peer's tensor is read before its launch has begun: the previous call's data, or memory not yet
;   mapped.
; seen: CUTLASS PR #3143 (first use before the mapping is ready; its kind)
; rule: read-before-arrival
; base: gather_pull_passes
program @gather_pull for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[%own, K] exposed first_row rank * %S @13:3
  buffer %b : bf16[N, K] in @14:3
  buffer %c : bf16[M, N] out @15:3
  buffer %a_all : bf16[M, K] symmetric @16:3
  signal %ready[world] host
  signal %pulled[world] host
  signal %arrived[world] device
  table %tiles[%T] order own_shard_first (%tm, %tn) -> (%tm * 8 / %S, (min(%tm * 8 + 8, M) - 1) / %S + 1)
  %e0 = acc 0 @21:3
  agent pull on copy_engine {
    for %p in 0..world { @23:5
      signal peer(%p).%ready[rank] = epoch scope sys after performed @24:7
    }
    for %h in 0..world { @26:5
      let %src = (rank + %h) % world @27:7
      let %end = min(%src * %S + %S, M) @28:7
      copy %a_all[%src * %S..%end, 0..K] <- peer(%src).%a[%src * %S..%end, 0..K] @29:7 ; error[read-before-arrival]: rank 1, the copy engine of `pull` reads rows 0..1, columns 0..1 of `%a` on rank 0, and nothing it waits for says that rank 0 has begun this launch
      signal %arrived[%src] = epoch scope sys after performed @30:7
      signal peer(%src).%pulled[rank] = epoch scope sys after performed @31:7
    }
    wait %pulled[0..world] >= epoch scope sys @33:5
  }
  agent gemm on ctas {
    for %t in cta..%T step ctas { @36:5
      row (%m, %n, %first, %last) = %tiles[%t] @37:7
      let %m0 = %m * 8 @38:7
      let %m1 = min(%m0 + 8, M) @39:7
      let %n0 = %n * 8 @40:7
      let %n1 = min(%n0 + 8, N) @41:7
      wait %arrived[%first..%last] >= epoch scope sys @42:7
      fence proxy.async @43:7
      mainloop %a_all[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @44:7
      store %c[%m0..%m1, %n0..%n1] <- %e0 @45:7
    }
  }
}
