kernel @all_reduce(%x: &global<bf16>, %c: &mut reduced<bf16>) {
  for tile in %c {
    %0 = load %x
    %1 = reduce %c, %0
    store %c, %1
  }
}
