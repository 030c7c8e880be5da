; Copies go in chunks of 4 rows, each with its flag; tiles look for the flags of chunks of 8.
; seen: ROCm/rocm-libraries PR #5776 (its kind)
; rule: read-before-arrival
; base: gather_push_passes
program @gather_push for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %CH = ceil(%S / 4)
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[%own, K] in first_row rank * %S @13:3
  buffer %b : bf16[N, K] in @14:3
  buffer %c : bf16[M, N] out @15:3
  buffer %a_all : bf16[2][M, K] symmetric @16:3
  signal %free[world] host
  signal %arrived[world * %CH] device
  table %tiles[%T] order own_shard_first (%tm, %tn) -> (%tm * 8 / %S * %CH + %tm * 8 % %S / 8, (min(%tm * 8 + 8, M) - 1) / %S * %CH + (min(%tm * 8 + 8, M) - 1) % %S / 8 + 1)
  %e0 = acc 0 @20:3
  agent push on copy_engine {
    for %h in 0..world { @22:5
      let %dst = (rank + %h) % world @23:7
      wait %free[%dst] >= epoch - 2 scope sys @24:7
      for %c in 0..ceil(%own / 4) { @25:7
        let %from = rank * %S + %c * 4 @26:9
        let %to = min(%from + 4, rank * %S + %own) @27:9
        copy peer(%dst).%a_all{epoch % 2}[%from..%to, 0..K] <- %a[%from..%to, 0..K] @28:9
        signal peer(%dst).%arrived[rank * %CH + %c] = epoch scope sys after performed @29:9
      }
    }
  }
  agent gemm on ctas {
    for %t in cta..%T step ctas { @34:5
      row (%m, %n, %first, %last) = %tiles[%t] @35:7
      let %m0 = %m * 8 @36:7
      let %m1 = min(%m0 + 8, M) @37:7
      let %n0 = %n * 8 @38:7
      let %n1 = min(%n0 + 8, N) @39:7
      wait %arrived[%first..%last] >= epoch scope sys @40:7
      fence proxy.async @41:7
      mainloop %a_all{epoch % 2}[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @42:7 ; error[read-before-arrival]: rank 0, cta 0 of `gemm` reads rows 0..8, columns 0..8 of `%a_all{1}` on rank 0, and nothing it waits for says that element (4, 0) has been written
      store %c[%m0..%m1, %n0..%n1] <- %e0 @43:7
    }
  } exit {
    for %p in 0..world { @46:5
      signal peer(%p).%free[rank] = epoch scope sys after performed @47:7
    }
  }
}
