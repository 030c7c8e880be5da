kernel @ag_gemm_rs_gated(%x: &gathered<f16>, %w1: &global<f16>, %w3: &global<f16>, %scale: f32, %y: &mut scattered<f16>) { @3:8
  for tile in %y {                       @4:17
    %0 = wait %x                         @5:21
    %1 = gemm %0, %w1.t                  @6:9
    %2 = gemm %0, %w3.t                  @7:9
    %3 = silu %1                         @8:9
    %4 = mul %3, %2                      @8:9
    %5 = scalar %scale                   @8:9
    %6 = mul %4, %5                      @8:9
    %7 = reduce %y, %6                   @9:9
    store %y, %7                         @9:9
  }
}
