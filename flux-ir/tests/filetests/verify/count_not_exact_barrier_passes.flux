; A slot for each rank.
program @barrier for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  signal %here[world] host
  agent meet on copy_engine {
    for %p in 0..world { @6:5
      signal peer(%p).%here[rank] = epoch scope sys after performed @7:7
    }
    wait %here[0..world] >= epoch scope sys @9:5
  }
}
