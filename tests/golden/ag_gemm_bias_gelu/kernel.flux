kernel @ag_gemm_bias_gelu(%a: &gathered<bf16>, %b: &global<bf16>, %bias: &global<f32>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = wait %a
    %1 = gemm %0, %b.t
    %2 = cols %bias
    %3 = add %1, %2
    %4 = gelu %3
    store %c, %4
  }
}
