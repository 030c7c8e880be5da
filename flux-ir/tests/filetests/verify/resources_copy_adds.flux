; A copy engine writes words, it does not add.
program @ag_gemm_gelu for sm_90a {
  tile (128, 256, 64) stages 4 consumers cooperative
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %CR = max(%S, 1)
  let %CH = ceil(%S / %CR)
  let %MT = ceil(M / 128)
  let %NT = ceil(N / 256)
  let %T = %MT * %NT
  buffer %a : bf16[%own, K] in first_row rank * %S @11:3
  buffer %b : bf16[N, K] in @12:3
  buffer %bias : f32[1, N] in @13:3
  buffer %c : bf16[M, N] out @14:3
  buffer %a_all : bf16[2][M, K] symmetric @15:3
  signal %free_host[world] host
  signal %a_arrived[world * %CH] device
  table %tiles[%T] order own_shard_first (%tm, %tn) -> (%tm * 128 / %S * %CH + %tm * 128 % %S / %CR, (min(%tm * 128 + 128, M) - 1) / %S * %CH + (min(%tm * 128 + 128, M) - 1) % %S / %CR + 1)
  %e0 = acc 0 @19:3
  %e1 = cols %bias @20:3
  %e2 = add %e0, %e1 @21:3
  %e3 = gelu %e2 @22:3
  agent push_a on copy_engine {
    for %h in 0..world { @24:5
      let %dst = (rank + %h) % world @25:7
      wait %free_host[%dst] >= epoch - 2 scope sys @26:7
      for %c in 0..ceil(%own / %CR) { @27:7
        let %from = rank * %S + %c * %CR @28:9
        copy peer(%dst).%a_all{epoch % 2}[%from..min(%from + %CR, rank * %S + %own), 0..K] <- %a[%from..min(%from + %CR, rank * %S + %own), 0..K] @29:9
        signal peer(%dst).%a_arrived[rank * %CH + %c] += 1 scope sys after performed @30:9 ; error[resources]: a copy engine sets `%a_arrived` once a launch, it cannot add to it
      }
    }
  }
  agent gemm on ctas {
    for %t in cta..%T step ctas { @35:5
      row (%m, %n, %first, %last) = %tiles[%t] @36:7
      let %m0 = %m * 128 @37:7
      let %m1 = min(%m0 + 128, M) @38:7
      let %n0 = %n * 256 @39:7
      let %n1 = min(%n0 + 256, N) @40:7
      wait %a_arrived[%first..%last] >= epoch scope sys @41:7
      fence proxy.async @42:7
      mainloop %a_all{epoch % 2}[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @43:7
      store %c[%m0..%m1, %n0..%n1] <- %e3 @44:7
    }
  } exit {
    for %p in 0..world { @47:5
      signal peer(%p).%free_host[rank] = epoch scope sys after performed @48:7
    }
  }
}
