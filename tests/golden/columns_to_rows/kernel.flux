kernel @columns_to_rows(%x: &exchanged<bf16>, %c: &mut sharded<bf16>) {
  for tile in %c {
    %0 = wait %x
    %1 = load %0
    store %c, %1
  }
}
