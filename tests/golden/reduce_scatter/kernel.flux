kernel @reduce_scatter(%x: &global<bf16>, %c: &mut scattered<bf16>) {
  for tile in %c {
    %0 = load %x
    %1 = reduce %c, %0
    store %c, %1
  }
}
