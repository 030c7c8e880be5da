kernel @sum_ahead(
  %a: &global<bf16> @25:22,
  %b: &global<bf16> @25:40,
  %c: &mut global<bf16> @25:58
) {                                      @25:12
  protocol {
    buffer %sums : bf16[M, K] symmetric  @26:20
    buffer %a : bf16[M, K] in            @25:22
    signal %laid[world] device
    signal %added[world] device
    signal %whole[world] device
    agent sum on copy_engine {
      let %next = (rank + 1) % world     @31:24
      let %before = (rank + world - 1) % world @32:26
      for %source in 0..world {          @34:13
        copy peer(rank).%sums[min(%source * ceil(M / world), M)..min(%source * ceil(M / world) + ceil(M / world), M), 0..K] <- %a[min(%source * ceil(M / world), M)..min(%source * ceil(M / world) + ceil(M / world), M), 0..K] @35:32
        signal peer(%before).%laid[%source] += 1 scope sys after performed @36:22
        if %source == %before {          @37:17
          signal peer(rank).%added[%source] += 1 scope sys after performed @38:27
        }
      }
      for %hop in 1..world {             @41:13
        let %source2 = (rank + world - %hop) % world @42:30
        wait %added[%source2] >= 1 scope sys @43:60
        wait %laid[%source2] >= 1 scope sys @44:61
        copy peer(%next).%sums[min(%source2 * ceil(M / world), M)..min(%source2 * ceil(M / world) + ceil(M / world), M), 0..K] += %sums[min(%source2 * ceil(M / world), M)..min(%source2 * ceil(M / world) + ceil(M / world), M), 0..K] @44:33
        signal peer(%next).%added[%source2] += 1 scope sys after performed @45:23
      }
      wait %added[rank] >= 1 scope sys   @48:55
      signal peer(rank).%whole[rank] += 1 scope sys after performed @49:19
      if 1 < world {                     @50:13
        copy peer(%next).%sums[min(rank * ceil(M / world), M)..min(rank * ceil(M / world) + ceil(M / world), M), 0..K] <- %sums[min(rank * ceil(M / world), M)..min(rank * ceil(M / world) + ceil(M / world), M), 0..K] @51:33
        signal peer(%next).%whole[rank] += 1 scope sys after performed @52:23
      }
      for %hop2 in 1..world - 1 {        @54:13
        let %source3 = (rank + world - %hop2) % world @55:30
        wait %whole[%source3] >= 1 scope sys @56:60
        copy peer(%next).%sums[min(%source3 * ceil(M / world), M)..min(%source3 * ceil(M / world) + ceil(M / world), M), 0..K] <- %sums[min(%source3 * ceil(M / world), M)..min(%source3 * ceil(M / world) + ceil(M / world), M), 0..K] @57:33
        signal peer(%next).%whole[%source3] += 1 scope sys after performed @58:23
      }
    }
  }
  for tile in %c {                       @61:9
    %0 = await %whole[%"tile.row0" / ceil(M / world)..(%"tile.row1" - 1) / ceil(M / world) + 1] @63:44
    %1 = ready %sums after %0            @63:26
    %2 = gemm %1, %b.t                   @64:27
    store %c, %2                         @64:15
  }
}
