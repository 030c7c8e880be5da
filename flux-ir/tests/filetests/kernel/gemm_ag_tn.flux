kernel @gemm_ag_tn(%a: &global<bf16>, %b: &gathered<bf16>, %c: &mut global<bf16>) { @3:8
  for tile in %c {                       @4:17
    %0 = wait %b                         @5:19
    %1 = gemm %a.t, %b                   @6:23
    store %c, %1                         @6:11
  }
}
