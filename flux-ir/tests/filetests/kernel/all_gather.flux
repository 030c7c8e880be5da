kernel @all_gather(%x: &gathered<bf16>, %c: &mut global<bf16>) { @3:8
  for tile in %c {                       @4:17
    %0 = wait %x                         @5:22
    %1 = load %0                         @6:28
    store %c, %1                         @6:11
  }
}
