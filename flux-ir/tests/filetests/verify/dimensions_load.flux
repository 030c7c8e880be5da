; A store takes more columns than were loaded.
program @all_gather for host {
  tile (8, 8, 8) stages 4 consumers cooperative
  vars %S, %own, %CR, %CH, %h, %dst, %c, %from, %MT, %NT, %T, %tm, %tn, %t, %m, %n, %first, %last, %m0, %m1, %n0, %n1, %p
  let %S = ceil(M / world)
  let %own = max(min(%S, M - rank * %S), 0)
  let %CR = max(%S, 1)
  let %CH = ceil(%S / %CR)
  let %MT = ceil(M / 8)
  let %NT = ceil(N / 8)
  let %T = %MT * %NT
  buffer %x : bf16[%own, N] in first_row rank * %S
  buffer %c : bf16[M, N] out
  buffer %x_all : bf16[2][M, N] symmetric
  signal %free_host[world] host
  signal %x_arrived[world * %CH] device
  table %tiles[%T] order own_shard_first (%tm, %tn) -> (%tm * 8 / %S * %CH + %tm * 8 % %S / %CR, (min(%tm * 8 + 8, M) - 1) / %S * %CH + (min(%tm * 8 + 8, M) - 1) % %S / %CR + 1)
  %e0 = loaded 0                         @6:28
  agent push_x on copy_engine {
    for %h in 0..world {                 @5:22
      let %dst = (rank + %h) % world     @5:22
      wait %free_host[%dst] >= epoch - 2 scope sys @5:22
      for %c in 0..ceil(%own / %CR) {    @5:22
        let %from = rank * %S + %c * %CR @5:22
        copy peer(%dst).%x_all{epoch % 2}[%from..min(%from + %CR, rank * %S + %own), 0..N] <- %x[%from..min(%from + %CR, rank * %S + %own), 0..N] @5:22
        signal peer(%dst).%x_arrived[rank * %CH + %c] = epoch scope sys after performed @5:22
      }
    }
  }
  agent tiles on ctas {
    for %t in cta..%T step ctas {        @4:17
      row (%m, %n, %first, %last) = %tiles[%t] @4:17
      let %m0 = %m * 8                 @4:17
      let %m1 = min(%m0 + 8, M)        @4:17
      let %n0 = %n * 8                 @4:17
      let %n1 = min(%n0 + 8, N)        @4:17
      wait %x_arrived[%first..%last] >= epoch scope sys @5:22
      load 0 from %x_all{epoch % 2}[%m0..%m1, %n0..min(%n0 + 4, N)] @5:22
      store %c[%m0..%m1, %n0..%n1] <- %e0 @6:11 ; error[dimensions]: rank 0, cta 0 of `tiles` uses rows 0..3, columns 0..8 of a tile that was loaded in rows 0..3, columns 0..4 of them
    }
  } exit {
    for %p in 0..world {                 @5:22
      signal peer(%p).%free_host[rank] = epoch scope sys after performed @5:22
    }
  }
}
