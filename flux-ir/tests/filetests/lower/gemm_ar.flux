kernel @gemm_ar(%a: &global<bf16>, %b: &global<bf16>, %c: &mut reduced<bf16>) { @3:8
  for tile in %c {                       @4:17
    %0 = gemm %a, %b.t                   @5:21
    %1 = reduce %c, %0                   @5:9
    store %c, %1                         @5:9
  }
}
