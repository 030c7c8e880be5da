; All ranks put to one plane of each.
program @put for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  buffer %a : bf16[M, K] in @4:3
  buffer %x : bf16[2, world][M, K] symmetric @5:3
  signal %got[world] host
  agent put on copy_engine {
    for %p in 0..world { @8:5
      copy peer(%p).%x{epoch % 2, 0}[0..M, 0..K] <- %a[0..M, 0..K] @9:7 ; error[unordered-writes]: rank 0, the copy engine of `put` writes rows 0..1, columns 0..1 of `%x{2}` on rank 0, where rank 1, the copy engine of `put` writes element (0, 0) as well, and nothing orders the two
      signal peer(%p).%got[rank] = epoch scope sys after performed @10:7
    }
  }
}
