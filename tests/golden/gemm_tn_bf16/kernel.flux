kernel @gemm_tn_bf16(%a: &global<bf16>, %b: &global<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = gemm %a.t, %b
    store %c, %0
  }
}
