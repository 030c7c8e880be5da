kernel @gemm_a2a(%a: &sharded<bf16>, %b: &global<bf16>, %c: &mut exchanged<bf16>) { @3:8
  for tile in %c {                       @4:17
    %0 = gemm %a, %b.t                   @5:23
    store %c, %0                         @5:11
  }
}
