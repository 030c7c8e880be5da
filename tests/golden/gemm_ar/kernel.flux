kernel @gemm_ar(%a: &global<bf16>, %b: &global<bf16>, %c: &mut reduced<bf16>) {
  for tile in %c {
    %0 = gemm %a, %b.t
    %1 = reduce %c, %0
    store %c, %1
  }
}
