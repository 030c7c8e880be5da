; Ranks greet the next one around a ring before they wait for the previous one.
program @connect for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  signal %hello[1] host
  agent connect on copy_engine {
    if 1 < world { @6:5
      signal peer((rank + 1) % world).%hello[0] = epoch scope sys after performed @7:7
      wait %hello[0] >= epoch scope sys @8:7
    }
  }
}
