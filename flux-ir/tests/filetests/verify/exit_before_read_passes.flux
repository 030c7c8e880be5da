; A launch waits until its tensor has been pulled.
program @pull for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  buffer %a : bf16[M, K] exposed @4:3
  buffer %x : bf16[M, K] symmetric @5:3
  signal %ready[1] host
  signal %done[1] host
  agent pull on copy_engine {
    signal peer((rank + world - 1) % world).%ready[0] = epoch scope sys after performed @9:5
    wait %ready[0] >= epoch scope sys @10:5
    copy %x[0..M, 0..K] <- peer((rank + 1) % world).%a[0..M, 0..K] @11:5
    signal peer((rank + 1) % world).%done[0] = epoch scope sys after performed @12:5
    wait %done[0] >= epoch scope sys @13:5
  }
}
