; Every rank waits to be greeted before it greets.
; seen: mscclpp PR #616 (circular channel set-up)
; rule: deadlock
; base: connect_passes
program @connect for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  signal %hello[1] host
  agent connect on copy_engine {
    if 1 < world { @9:5
      wait %hello[0] >= epoch scope sys @10:7 ; error[deadlock]: rank 0, the copy engine of `connect` waits for `%hello[0]` >= 1 and sees 0, and the raise waits for this
      signal peer((rank + 1) % world).%hello[0] = epoch scope sys after performed @11:7
    }
  }
}
