kernel @gemm_rs_nn(%a: &global<bf16>, %b: &global<bf16>, %c: &mut scattered<bf16>) {
  for tile in %c {
    %0 = gemm %a, %b
    %1 = reduce %c, %0
    store %c, %1
  }
}
