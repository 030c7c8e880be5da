; The host waits before it launches the grid that would end its wait.
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
  signal %go[1] host
  signal %a_arrived[world * %CH] device
  table %tiles[%T] order own_shard_first (%tm, %tn) -> (%tm * 128 / %S * %CH + %tm * 128 % %S / %CR, (min(%tm * 128 + 128, M) - 1) / %S * %CH + (min(%tm * 128 + 128, M) - 1) % %S / %CR + 1)
  %e0 = acc 0 @20:3
  %e1 = cols %bias @21:3
  %e2 = add %e0, %e1 @22:3
  %e3 = gelu %e2 @23:3
  agent push_a on copy_engine {
    for %h in 0..world { @25:5
      let %dst = (rank + %h) % world @26:7
      wait %go[0] >= epoch scope sys @27:7 ; error[deadlock]: rank 0, the copy engine of `push_a` waits for `%go[0]` >= 1 and sees 0, and the raise waits for this
      wait %free_host[%dst] >= epoch - 2 scope sys @28:7
      for %c in 0..ceil(%own / %CR) { @29:7
        let %from = rank * %S + %c * %CR @30:9
        copy peer(%dst).%a_all{epoch % 2}[%from..min(%from + %CR, rank * %S + %own), 0..K] <- %a[%from..min(%from + %CR, rank * %S + %own), 0..K] @31:9
        signal peer(%dst).%a_arrived[rank * %CH + %c] = epoch scope sys after performed @32:9
      }
    }
  }
  agent gemm on ctas {
    if cta == 0 { @37:5
      signal %go[0] = epoch scope sys after performed @38:7
    }
    for %t in cta..%T step ctas { @40:5
      row (%m, %n, %first, %last) = %tiles[%t] @41:7
      let %m0 = %m * 128 @42:7
      let %m1 = min(%m0 + 128, M) @43:7
      let %n0 = %n * 256 @44:7
      let %n1 = min(%n0 + 256, N) @45:7
      wait %a_arrived[%first..%last] >= epoch scope sys @46:7
      fence proxy.async @47:7
      mainloop %a_all{epoch % 2}[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @48:7
      store %c[%m0..%m1, %n0..%n1] <- %e3 @49:7
    }
  } exit {
    for %p in 0..world { @52:5
      signal peer(%p).%free_host[rank] = epoch scope sys after performed @53:7
    }
  }
}
