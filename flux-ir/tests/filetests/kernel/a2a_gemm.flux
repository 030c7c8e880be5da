kernel @a2a_gemm(%a: &exchanged<bf16>, %b: &global<bf16>, %c: &mut sharded<bf16>) { @3:8
  for tile in %c {                       @4:17
    %0 = wait %a                         @5:19
    %1 = gemm %0, %b.t                   @6:23
    store %c, %1                         @6:11
  }
}
