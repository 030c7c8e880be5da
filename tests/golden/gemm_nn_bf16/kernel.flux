kernel @gemm_nn_bf16(%a: &global<bf16>, %b: &global<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = gemm %a, %b
    store %c, %0
  }
}
