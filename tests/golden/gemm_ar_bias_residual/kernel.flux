kernel @gemm_ar_bias_residual(%a: &global<bf16>, %b: &global<bf16>, %bias: &global<f32>, %residual: &global<bf16>, %c: &mut reduced<bf16>) {
  for tile in %c {
    %0 = gemm %a, %b.t
    %1 = reduce %c, %0
    %2 = cols %bias
    %3 = add %1, %2
    %4 = load %residual
    %5 = add %3, %4
    store %c, %5
  }
}
