kernel @ag_gemm_tn(%a: &gathered<bf16>, %b: &global<bf16>, %c: &mut global<bf16>) { @3:8
  for tile in %c {                       @4:17
    %0 = wait %a                         @5:19
    %1 = gemm %a.t, %b                   @6:23
    store %c, %1                         @6:11
  }
}
