kernel @ag_gemm_gathered(%a: &gathered<bf16>, %b: &global<bf16>, %x: &mut global<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = wait %a
    %1 = gemm %0, %b.t
    store %c, %1
    keep %x, %0
  }
}
