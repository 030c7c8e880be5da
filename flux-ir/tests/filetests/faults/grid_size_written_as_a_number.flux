; The number of arrivals is that of one device; on a smaller grid some never come.
; seen: Flux COMET (132 is a compile-time constant)
; rule: wait-without-signal
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
    signal %made[0] += 1 scope gpu after performed @28:5 ; error[count-not-exact]: rank 0, cta 0 of `up` may raise `%made[0]` before rank 0, cta 2 of `up` does, and end a wait for 2 in its place
  }
  agent down on ctas {
    wait %made[0] >= 2 * epoch scope gpu @31:5 ; error[wait-without-signal]: rank 0, cta 0 of `down` waits for `%made[0]` >= 2, all agents of all ranks raise it to 1 by then ; error[count-not-exact]: the target of the wait for `%made[0]` grows by 2 a launch, the signal by 3
    fence proxy.async @32:5
    for %t in cta..%T step ctas { @33:5
      row (%m, %n, %first, %last) = %tiles[%t] @34:7
      let %m0 = %m * 8 @35:7
      let %m1 = min(%m0 + 8, M) @36:7
      let %n0 = %n * 8 @37:7
      let %n1 = min(%n0 + 8, N) @38:7
      mainloop %h[%m0..%m1, 0..N] * %w[%n0..%n1, 0..N]^T @39:7 ; error[read-before-arrival]: rank 0, cta 0 of `down` reads rows 0..1, columns 0..1 of `%h` on rank 0, and nothing it waits for says that element (0, 0) has been written
      store %c[%m0..%m1, %n0..%n1] <- %e0 @40:7
    }
  }
}
