; A copy engine is no thread of the GPU.
; seen: Flux AG-GEMM (the acquire of a copy engine's data is of GPU scope), from its other end
; rule: scope-too-narrow
; base: gemm_gather_gemm_passes
program @gemm_gather_gemm for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[M, K] in @12:3
  buffer %b : bf16[N, K] in @13:3
  buffer %w : bf16[N, N] in @14:3
  buffer %c : bf16[M, N] out @15:3
  buffer %h : bf16[%S, N] symmetric first_row rank * %S @16:3
  buffer %h_all : bf16[2][M, N] symmetric @17:3
  signal %made[%MT] host
  signal %free[world] host
  signal %arrived[world * %MT] device
  table %tiles[%T] order row_major (%tm, %tn) -> (%tm * 8 / %S, (min(%tm * 8 + 8, M) - 1) / %S + 1)
  %e0 = acc 0 @22:3
  agent up on ctas {
    for %t in cta..%T step ctas { @24:5
      row (%m, %n, %first, %last) = %tiles[%t] @25:7
      let %m0 = %m * 8 @26:7
      let %m1 = min(%m0 + 8, M) @27:7
      let %n0 = %n * 8 @28:7
      let %n1 = min(%n0 + 8, N) @29:7
      let %lo = max(rank * %S, %m0) @30:7
      let %hi = min(rank * %S + %S, %m1) @31:7
      if %lo < %hi { @32:7
        mainloop %a[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @33:9
        store %h[%lo..%hi, %n0..%n1] <- %e0 @34:9
        signal %made[%m] += 1 scope gpu after performed @35:9 ; error[scope-too-narrow]: rank 0, cta 0 of `up` raises `%made[0]` at scope gpu, expected sys: rank 0, the copy engine of `gather` waits for it
      }
    }
  }
  agent gather on copy_engine {
    if 0 < %own { @40:5
      for %d in 0..world { @41:7
        let %dst = (rank + %d) % world @42:9
        wait %free[%dst] >= epoch - 2 scope sys @43:9
        for %r in rank * %S / 8..ceil((rank * %S + %own) / 8) { @44:9
          let %from = max(rank * %S, %r * 8) @45:11
          let %to = min(rank * %S + %own, %r * 8 + 8) @46:11
          wait %made[%r] >= %NT * epoch scope sys @47:11
          copy peer(%dst).%h_all{epoch % 2}[%from..%to, 0..N] <- %h[%from..%to, 0..N] @48:11
          signal peer(%dst).%arrived[rank * %MT + %r] = epoch scope sys after performed @49:11
        }
      }
    }
  }
  agent down on ctas {
    for %t in cta..%T step ctas { @55:5
      row (%m, %n, %first, %last) = %tiles[%t] @56:7
      let %m0 = %m * 8 @57:7
      let %m1 = min(%m0 + 8, M) @58:7
      let %n0 = %n * 8 @59:7
      let %n1 = min(%n0 + 8, N) @60:7
      for %s in %first..%last { @61:7
        wait %arrived[%s * %MT + %m] >= epoch scope sys @62:9
      }
      fence proxy.async @64:7
      mainloop %h_all{epoch % 2}[%m0..%m1, 0..N] * %w[%n0..%n1, 0..N]^T @65:7
      store %c[%m0..%m1, %n0..%n1] <- %e0 @66:7
    }
  } exit {
    for %p in 0..world { @69:5
      signal peer(%p).%free[rank] = epoch scope sys after performed @70:7
    }
  }
}
