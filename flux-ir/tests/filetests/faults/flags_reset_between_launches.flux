; Flags are 1 in each launch, for a host that clears them in between; replayed without it, the
;   second launch sees the first one's.
; seen: Triton-distributed and Flux (host memset), flashinfer #3053 (graph replay)
; rule: signal-not-monotone
; base: gather_push_passes
program @gather_push for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %CH = ceil(%S / 4)
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[%own, K] in first_row rank * %S @14:3
  buffer %b : bf16[N, K] in @15:3
  buffer %c : bf16[M, N] out @16:3
  buffer %a_all : bf16[2][M, K] symmetric @17:3
  signal %free[world] host
  signal %arrived[world * %CH] device
  table %tiles[%T] order own_shard_first (%tm, %tn) -> (%tm * 8 / %S * %CH + %tm * 8 % %S / 4, (min(%tm * 8 + 8, M) - 1) / %S * %CH + (min(%tm * 8 + 8, M) - 1) % %S / 4 + 1)
  %e0 = acc 0 @21:3
  agent push on copy_engine {
    for %h in 0..world { @23:5
      let %dst = (rank + %h) % world @24:7
      wait %free[%dst] >= epoch - 2 scope sys @25:7
      for %c in 0..ceil(%own / 4) { @26:7
        let %from = rank * %S + %c * 4 @27:9
        let %to = min(%from + 4, rank * %S + %own) @28:9
        copy peer(%dst).%a_all{epoch % 2}[%from..%to, 0..K] <- %a[%from..%to, 0..K] @29:9
        signal peer(%dst).%arrived[rank * %CH + %c] = 1 scope sys after performed @30:9 ; error[signal-not-monotone]: rank 0, the copy engine of `push` sets `%arrived[0]` of rank 0 to 1 when it is 1
      }
    }
  }
  agent gemm on ctas {
    for %t in cta..%T step ctas { @35:5
      row (%m, %n, %first, %last) = %tiles[%t] @36:7
      let %m0 = %m * 8 @37:7
      let %m1 = min(%m0 + 8, M) @38:7
      let %n0 = %n * 8 @39:7
      let %n1 = min(%n0 + 8, N) @40:7
      wait %arrived[%first..%last] >= 1 scope sys @41:7
      fence proxy.async @42:7
      mainloop %a_all{epoch % 2}[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @43:7
      store %c[%m0..%m1, %n0..%n1] <- %e0 @44:7
    }
  } exit {
    for %p in 0..world { @47:5
      signal peer(%p).%free[rank] = epoch scope sys after performed @48:7
    }
  }
}
