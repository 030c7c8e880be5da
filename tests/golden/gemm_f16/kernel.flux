kernel @gemm_f16(%a: &global<f16>, %b: &global<f16>, %c: &mut global<f16>) {
  for tile in %c {
    %0 = gemm %a, %b.t
    store %c, %0
  }
}
