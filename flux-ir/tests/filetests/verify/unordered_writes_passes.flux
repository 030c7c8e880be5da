; Each rank puts to a plane of its own.
program @put for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  buffer %a : bf16[M, K] in @4:3
  buffer %x : bf16[2, world][M, K] symmetric @5:3
  signal %got[world] host
  agent put on copy_engine {
    for %p in 0..world { @8:5
      copy peer(%p).%x{epoch % 2, rank}[0..M, 0..K] <- %a[0..M, 0..K] @9:7
      signal peer(%p).%got[rank] = epoch scope sys after performed @10:7
    }
  }
}
