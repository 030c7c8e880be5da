program @all_gather for sm_90a {
  tile (128, 256, 64) stages 2 consumers cooperative
  vars %S, %own, %CR, %CH, %h, %dst, %c, %from, %MT, %NT, %T, %tm, %tn, %t, %m, %n, %first, %last, %m0, %m1, %n0, %n1, %p
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %CR = max(%S, 1)
  let %CH = ceil(%S / %CR)
  let %MT = ceil(M / 128)
  let %NT = ceil(N / 256)
  let %T = %MT * %NT
  buffer %x : bf16[%own, N] in first_row rank * %S
  buffer %c : bf16[M, N] out
  buffer %x_all : bf16[2][M, N] symmetric
  signal %free_host[world] host
  signal %x_arrived[world * %CH] device
  table %tiles[%T] order own_shard_first (%tm, %tn) -> (%tm * 128 / %S * %CH + %tm * 128 % %S / %CR, (min(%tm * 128 + 128, M) - 1) / %S * %CH + (min(%tm * 128 + 128, M) - 1) % %S / %CR + 1)
  %e0 = loaded 0
  agent push_x on copy_engine {
    for %h in 0..world {
      let %dst = (rank + %h) % world
      wait %free_host[%dst] >= epoch - 2 scope sys
      for %c in 0..ceil(%own / %CR) {
        let %from = rank * %S + %c * %CR
        copy peer(%dst).%x_all{epoch % 2}[%from..min(%from + %CR, rank * %S + %own), 0..N] <- %x[%from..min(%from + %CR, rank * %S + %own), 0..N]
        signal peer(%dst).%x_arrived[rank * %CH + %c] = epoch scope sys after performed
      }
    }
  }
  agent tiles on ctas {
    for %t in cta..%T step ctas {
      row (%m, %n, %first, %last) = %tiles[%t]
      let %m0 = %m * 128
      let %m1 = min(%m0 + 128, M)
      let %n0 = %n * 256
      let %n1 = min(%n0 + 256, N)
      wait %x_arrived[%first..%last] >= epoch scope sys
      load 0 from %x_all{epoch % 2}[%m0..%m1, %n0..%n1]
      store %c[%m0..%m1, %n0..%n1] <- %e0
    }
  } exit {
    for %p in 0..world {
      signal peer(%p).%free_host[rank] = epoch scope sys after performed
    }
  }
}
