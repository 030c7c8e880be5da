kernel @gemm_ag_tn(%a: &global<bf16>, %b: &gathered<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = wait %b
    %1 = gemm %a.t, %b
    store %c, %1
  }
}
