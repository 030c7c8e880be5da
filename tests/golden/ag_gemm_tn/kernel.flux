kernel @ag_gemm_tn(%a: &gathered<bf16>, %b: &global<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = wait %a
    %1 = gemm %a.t, %b
    store %c, %1
  }
}
