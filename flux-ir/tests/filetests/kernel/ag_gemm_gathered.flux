kernel @ag_gemm_gathered(%a: &gathered<bf16>, %b: &global<bf16>, %x: &mut global<bf16>, %c: &mut global<bf16>) { @2:8
  for tile in %c {                       @4:9
    %0 = wait %a                         @5:19
    %1 = gemm %0, %b.t                   @6:26
    store %c, %1                         @6:15
    keep %x, %0                          @3:7
  }
}
