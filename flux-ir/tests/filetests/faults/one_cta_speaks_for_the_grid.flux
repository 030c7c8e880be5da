; The first CTA says that the grid has stored, and knows of its own tiles alone.
; seen: Triton-distributed `notify` (one thread for its CTA; here one CTA for its grid)
; rule: read-before-arrival
; base: two_gemms_passes
program @two_gemms for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %a : bf16[M, K] in @10:3
  buffer %b : bf16[N, K] in @11:3
  buffer %w : bf16[N, N] in @12:3
  buffer %c : bf16[M, N] out @13:3
  buffer %h : bf16[M, N] symmetric @14:3
  signal %made[1] device
  table %tiles[%T] order row_major (%tm, %tn) -> (0, 0)
  %e0 = acc 0 @17:3
  agent up on ctas {
    for %t in cta..%T step ctas { @19:5
      row (%m, %n, %first, %last) = %tiles[%t] @20:7
      let %m0 = %m * 8 @21:7
      let %m1 = min(%m0 + 8, M) @22:7
      let %n0 = %n * 8 @23:7
      let %n1 = min(%n0 + 8, N) @24:7
      mainloop %a[%m0..%m1, 0..K] * %b[%n0..%n1, 0..K]^T @25:7
      store %h[%m0..%m1, %n0..%n1] <- %e0 @26:7
    }
    if cta == 0 { @28:5
      signal %made[0] = epoch scope gpu after performed @29:7
    }
  }
  agent down on ctas {
    wait %made[0] >= epoch scope gpu @33:5
    fence proxy.async @34:5
    for %t in cta..%T step ctas { @35:5
      row (%m, %n, %first, %last) = %tiles[%t] @36:7
      let %m0 = %m * 8 @37:7
      let %m1 = min(%m0 + 8, M) @38:7
      let %n0 = %n * 8 @39:7
      let %n1 = min(%n0 + 8, N) @40:7
      mainloop %h[%m0..%m1, 0..N] * %w[%n0..%n1, 0..N]^T @41:7 ; error[read-before-arrival]: rank 0, cta 0 of `down` reads rows 0..3, columns 0..9 of `%h` on rank 0, and nothing it waits for says that element (0, 8) has been written
      store %c[%m0..%m1, %n0..%n1] <- %e0 @42:7
    }
  }
}
