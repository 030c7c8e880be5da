kernel @rows_to_columns(%x: &sharded<bf16>, %c: &mut exchanged<bf16>) {
  for tile in %c {
    %0 = load %x
    store %c, %0
  }
}
