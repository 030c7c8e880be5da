kernel @ag_gemm_swiglu(%a: &gathered<bf16>, %w1: &global<bf16>, %w3: &global<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = wait %a
    %1 = gemm %0, %w1.t
    %2 = gemm %0, %w3.t
    %3 = silu %1
    %4 = mul %3, %2
    store %c, %4
  }
}
