; Three buffers in turn: 2^32 is no multiple of 3.
program @turn for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  buffer %a : bf16[M, K] in @4:3
  buffer %x : bf16[4][M, K] symmetric @5:3
  agent fill on copy_engine {
    copy %x{epoch % 3}[0..M, 0..K] <- %a[0..M, 0..K] @7:5 ; error[counter-wrap]: `epoch % 3` means something else once the 32 bits of the epoch have wrapped
  }
}
