; `.read` says that shared memory may be used again; the put is still in flight when its flag is
;   up.
; seen: ThunderKittens #194 (gemm_ar_h100.cu), CuTeDSL GEMM-AR and GEMM-RS (`read=True`), triton
;   PR #10415; asked in sglang #9660
; rule: put-not-performed
; base: reduce_push_passes
program @reduce_push for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[M, K] in @12:3
  buffer %b : bf16[N, K] in @13:3
  buffer %c : bf16[M, N] out @14:3
  buffer %partial : bf16[2, world][M, N] symmetric @15:3
  signal %landed[world * %T] device
  signal %free[world] device
  table %tiles[%T] order row_major (%tm, %tn) -> (0, 0)
  %e0 = acc 0 @19:3
  %e1 = sum @20:3
  agent gemm on ctas {
    wait %free[0..world] >= epoch - 2 scope sys @22:5
    for %t in cta..%T step ctas { @23:5
      row (%m, %n, %first, %last) = %tiles[%t] @24:7
      let %m0 = %m * 8 @25:7
      let %m1 = min(%m0 + 8, M) @26:7
      let %n0 = %n * 8 @27:7
      let %n1 = min(%n0 + 8, N) @28:7
      mainloop %a[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @29:7
      for %h in 1..world { @30:7
        let %dst = (rank + %h) % world @31:9
        store peer(%dst).%partial{epoch % 2, rank}[%m0..%m1, %n0..%n1] <- %e0 @32:9
        signal peer(%dst).%landed[rank * %T + %m * %NT + %n] = epoch scope sys after read @33:9 ; error[put-not-performed]: rank 1, cta 0 of `gemm` signals before its write of rows 0..1, columns 0..1 of `%partial{3}` on rank 0 is performed
      }
      for %s in 0..world { @35:7
        if %s != rank { @36:9
          wait %landed[%s * %T + %m * %NT + %n] >= epoch scope sys @37:11
        }
      }
      sum %i own %e0 from %partial{epoch % 2, %i}[%m0..%m1, %n0..%n1] @40:7
      store %c[%m0..%m1, %n0..%n1] <- %e1 @41:7
    }
  } exit {
    for %p in 0..world { @44:5
      signal peer(%p).%free[rank] = epoch scope sys after performed @45:7
    }
  }
}
