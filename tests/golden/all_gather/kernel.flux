kernel @all_gather(%x: &gathered<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = wait %x
    %1 = load %0
    store %c, %1
  }
}
