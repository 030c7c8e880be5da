; The signal of a put stays on the rank that puts.
program @put for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  buffer %a : bf16[M, K] in @4:3
  buffer %x : bf16[2, world][M, K] symmetric @5:3
  signal %got[world] host
  agent put on copy_engine {
    for %p in 0..world { @8:5
      copy peer(%p).%x{epoch % 2, rank}[0..M, 0..K] <- %a[0..M, 0..K] @9:7 ; error[put-not-signalled]: rank 0, the copy engine of `put` writes rows 0..1, columns 0..1 of `%x{2}` on rank 1, and signals nothing to rank 1 after it
      signal peer(rank).%got[rank] += 1 scope sys after performed @10:7
    }
  }
}
