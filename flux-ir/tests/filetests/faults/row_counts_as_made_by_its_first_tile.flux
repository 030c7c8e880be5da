; The copy of a row of tiles starts when one of them is stored; which one is open.
; seen: FlashOverlap, Triton-distributed (tiles of a chunk are counted; the count stands in two
;   places): a hazard
; rule: count-not-exact
; base: gemm_gather_gemm_passes
program @gemm_gather_gemm for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[M, K] in @13:3
  buffer %b : bf16[N, K] in @14:3
  buffer %w : bf16[N, N] in @15:3
  buffer %c : bf16[M, N] out @16:3
  buffer %h : bf16[%S, N] symmetric first_row rank * %S @17:3
  buffer %h_all : bf16[2][M, N] symmetric @18:3
  signal %made[%MT] host
  signal %free[world] host
  signal %arrived[world * %MT] device
  table %tiles[%T] order row_major (%tm, %tn) -> (%tm * 8 / %S, (min(%tm * 8 + 8, M) - 1) / %S + 1)
  %e0 = acc 0 @23:3
  agent up on ctas {
    for %t in cta..%T step ctas { @25:5
      row (%m, %n, %first, %last) = %tiles[%t] @26:7
      let %m0 = %m * 8 @27:7
      let %m1 = min(%m0 + 8, M) @28:7
      let %n0 = %n * 8 @29:7
      let %n1 = min(%n0 + 8, N) @30:7
      let %lo = max(rank * %S, %m0) @31:7
      let %hi = min(rank * %S + %S, %m1) @32:7
      if %lo < %hi { @33:7
        mainloop %a[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @34:9
        store %h[%lo..%hi, %n0..%n1] <- %e0 @35:9
        signal %made[%m] += 1 scope sys after performed @36:9 ; error[count-not-exact]: rank 0, cta 0 of `up` may raise `%made[0]` before rank 0, cta 1 of `up` does, and end a wait for 1 in its place
      }
    }
  }
  agent gather on copy_engine {
    if 0 < %own { @41:5
      for %d in 0..world { @42:7
        let %dst = (rank + %d) % world @43:9
        wait %free[%dst] >= epoch - 2 scope sys @44:9
        for %r in rank * %S / 8..ceil((rank * %S + %own) / 8) { @45:9
          let %from = max(rank * %S, %r * 8) @46:11
          let %to = min(rank * %S + %own, %r * 8 + 8) @47:11
          wait %made[%r] >= epoch scope sys @48:11 ; error[count-not-exact]: the target of the wait for `%made[0]` grows by 1 a launch, the signal by 2
          copy peer(%dst).%h_all{epoch % 2}[%from..%to, 0..N] <- %h[%from..%to, 0..N] @49:11 ; error[read-before-arrival]: rank 0, the copy engine of `gather` reads rows 0..3, columns 0..9 of `%h` on rank 0, and nothing it waits for says that element (0, 8) has been written
          signal peer(%dst).%arrived[rank * %MT + %r] = epoch scope sys after performed @50:11
        }
      }
    }
  }
  agent down on ctas {
    for %t in cta..%T step ctas { @56:5
      row (%m, %n, %first, %last) = %tiles[%t] @57:7
      let %m0 = %m * 8 @58:7
      let %m1 = min(%m0 + 8, M) @59:7
      let %n0 = %n * 8 @60:7
      let %n1 = min(%n0 + 8, N) @61:7
      for %s in %first..%last { @62:7
        wait %arrived[%s * %MT + %m] >= epoch scope sys @63:9
      }
      fence proxy.async @65:7
      mainloop %h_all{epoch % 2}[%m0..%m1, 0..N] * %w[%n0..%n1, 0..N]^T @66:7
      store %c[%m0..%m1, %n0..%n1] <- %e0 @67:7
    }
  } exit {
    for %p in 0..world { @70:5
      signal peer(%p).%free[rank] = epoch scope sys after performed @71:7
    }
  }
}
