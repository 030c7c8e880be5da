kernel @a2a_gemm(%a: &exchanged<bf16>, %b: &global<bf16>, %c: &mut sharded<bf16>) {
  for tile in %c {
    %0 = wait %a
    %1 = gemm %0, %b.t
    store %c, %1
  }
}
