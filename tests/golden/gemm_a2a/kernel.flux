kernel @gemm_a2a(%a: &sharded<bf16>, %b: &global<bf16>, %c: &mut exchanged<bf16>) {
  for tile in %c {
    %0 = gemm %a, %b.t
    store %c, %0
  }
}
