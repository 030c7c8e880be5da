; The launch ends, and its caller overwrites the shard that a slow peer still pulls.
; seen: Flux AG-GEMM with `input_buffer_copied` (write after read)
; rule: exit-before-read
; base: gather_pull_passes
program @gather_pull for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[%own, K] exposed first_row rank * %S @12:3
  buffer %b : bf16[N, K] in @13:3
  buffer %c : bf16[M, N] out @14:3
  buffer %a_all : bf16[M, K] symmetric @15:3
  signal %ready[world] host
  signal %pulled[world] host
  signal %arrived[world] device
  table %tiles[%T] order own_shard_first (%tm, %tn) -> (%tm * 8 / %S, (min(%tm * 8 + 8, M) - 1) / %S + 1)
  %e0 = acc 0 @20:3
  agent pull on copy_engine {
    for %p in 0..world { @22:5
      signal peer(%p).%ready[rank] = epoch scope sys after performed @23:7
    }
    for %h in 0..world { @25:5
      let %src = (rank + %h) % world @26:7
      let %end = min(%src * %S + %S, M) @27:7
      wait %ready[%src] >= epoch scope sys @28:7
      copy %a_all[%src * %S..%end, 0..K] <- peer(%src).%a[%src * %S..%end, 0..K] @29:7 ; error[exit-before-read]: rank 1, the copy engine of `pull` may still read rows 0..1, columns 0..1 of `%a` on rank 0 when the launch of rank 0 is over
      signal %arrived[%src] = epoch scope sys after performed @30:7
      signal peer(%src).%pulled[rank] = epoch scope sys after performed @31:7
    }
  }
  agent gemm on ctas {
    for %t in cta..%T step ctas { @35:5
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
