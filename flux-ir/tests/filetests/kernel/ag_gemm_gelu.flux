kernel @ag_gemm_gelu(%a: &gathered<bf16>, %b: &global<bf16>, %bias: &global<f32>, %c: &mut global<bf16>) { @5:8
  for tile in %c {                       @6:17
    %0 = wait %a                         @7:17
    %1 = gemm %0, %b.t                   @8:19
    %2 = cols %bias                      @9:36
    %3 = add %1, %2                      @9:34
    %4 = gelu %3                         @9:23
    store %c, %4                         @9:9
  }
}
