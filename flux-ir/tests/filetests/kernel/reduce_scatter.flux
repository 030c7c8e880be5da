kernel @reduce_scatter(%x: &global<bf16>, %c: &mut scattered<bf16>) { @3:8
  for tile in %c {                       @4:17
    %0 = load %x                         @5:23
    %1 = reduce %c, %0                   @5:11
    store %c, %1                         @5:11
  }
}
