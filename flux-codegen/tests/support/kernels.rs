//! Kernels in text form.

/// `C = A · Bᵀ`.
pub(crate) const PLAIN: &str = "
kernel @plain(%a: &global<bf16>, %b: &global<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = gemm %a, %b.t
    store %c, %0
  }
}";

/// The same with f16.
pub(crate) const PLAIN_F16: &str = "
kernel @plain_f16(%a: &global<f16>, %b: &global<f16>, %c: &mut global<f16>) {
  for tile in %c {
    %0 = gemm %a, %b.t
    store %c, %0
  }
}";

/// `C = A · B`.
pub(crate) const NOT_TRANSPOSED: &str = "
kernel @not_transposed(%a: &global<bf16>, %b: &global<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = gemm %a, %b
    store %c, %0
  }
}";

/// `C = Aᵀ · B`.
pub(crate) const LEFT_TRANSPOSED: &str = "
kernel @left_transposed(%a: &global<f16>, %b: &global<f16>, %c: &mut global<f16>) {
  for tile in %c {
    %0 = gemm %a.t, %b
    store %c, %0
  }
}";

/// Bias, GELU and a residual.
pub(crate) const BIAS_GELU: &str = "
kernel @bias_gelu(%a: &global<bf16>, %b: &global<bf16>, %bias: &global<f32>, %res: &global<bf16>,
                  %c: &mut global<bf16>) {
  for tile in %c {
    %0 = gemm %a, %b.t
    %1 = cols %bias
    %2 = add %0, %1
    %3 = gelu %2
    %4 = load %res
    %5 = add %3, %4
    store %c, %5
  }
}";

/// Two products of one left operand.
pub(crate) const SWIGLU: &str = "
kernel @swiglu(%a: &global<bf16>, %g: &global<bf16>, %u: &global<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = gemm %a, %g.t
    %1 = gemm %a, %u.t
    %2 = silu %0
    %3 = mul %2, %1
    store %c, %3
  }
}";

/// Two outputs, a scalar and a vector over the rows.
pub(crate) const TWO_OUTPUTS: &str = "
kernel @two_outputs(%a: &global<f16>, %b: &global<f16>, %s: f32, %r: &global<f16>,
                    %c: &mut global<f16>, %d: &mut global<f32>) {
  for tile in %c {
    %0 = gemm %a, %b.t
    %1 = scalar %s
    %2 = mul %0, %1
    %3 = rows %r
    %4 = max %2, %3
    store %c, %4
    %6 = tanh %4
    %7 = div %6, %1
    store %d, %7
  }
}";

/// Every other function of the epilogue.
pub(crate) const FUNCTIONS: &str = "
kernel @functions(%a: &global<bf16>, %b: &global<bf16>, %r: &global<f32>, %c: &mut global<f32>) {
  for tile in %c {
    %0 = gemm %a, %b.t
    %1 = gelu_tanh %0
    %2 = exp %1
    %3 = relu %2
    %4 = neg %3
    %5 = cast %4 to f16
    %6 = load %r
    %7 = min %5, %6
    %8 = const 0.5
    %9 = sub %7, %8
    %10 = cast %9 to bf16
    store %c, %10
  }
}";

/// All-gather, GEMM, bias.
pub(crate) const GATHER: &str = "
kernel @gather(%a: &gathered<bf16>, %b: &global<bf16>, %bias: &global<f32>,
               %c: &mut global<bf16>) {
  for tile in %c {
    %0 = wait %a                     @7:17
    %1 = gemm %0, %b.t
    %2 = cols %bias
    %3 = add %1, %2
    store %c, %3
  }
}";

/// GEMM, reduce-scatter.
pub(crate) const SCATTER: &str = "
kernel @scatter(%a: &global<bf16>, %b: &global<bf16>, %c: &mut scattered<bf16>) {
  for tile in %c {
    %0 = gemm %a, %b.t
    %1 = reduce %c, %0
    store %c, %1
  }
}";

/// All-gather alone.
pub(crate) const GATHER_ALONE: &str = "
kernel @gather_alone(%x: &gathered<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = wait %x
    %1 = load %0
    store %c, %1
  }
}";

/// Reduce-scatter alone.
pub(crate) const SCATTER_ALONE: &str = "
kernel @scatter_alone(%x: &global<bf16>, %c: &mut scattered<bf16>) {
  for tile in %c {
    %0 = load %x
    %1 = reduce %c, %0
    store %c, %1
  }
}";

/// A product beside what is gathered for its epilogue, in f32.
pub(crate) const GATHER_BESIDE: &str = "
kernel @gather_beside(%a: &global<f16>, %b: &global<f16>, %x: &gathered<f32>, %c: &mut global<f32>) {
  for tile in %c {
    %0 = wait %x
    %1 = gemm %a, %b.t
    %2 = load %0
    %3 = add %1, %2
    store %c, %3
  }
}";

/// GEMM, all-reduce, bias and residual.
pub(crate) const REDUCE: &str = "
kernel @reduce(%a: &global<bf16>, %b: &global<bf16>, %bias: &global<f32>, %res: &global<bf16>,
               %c: &mut reduced<bf16>) {
  for tile in %c {
    %0 = gemm %a, %b.t
    %1 = reduce %c, %0
    %2 = cols %bias
    %3 = add %1, %2
    %4 = load %res
    %5 = add %3, %4
    store %c, %5
  }
}";

/// A product of own rows whose columns go to their owners.
pub(crate) const EXCHANGE: &str = "
kernel @exchange(%a: &sharded<bf16>, %b: &global<bf16>, %c: &mut exchanged<bf16>) {
  for tile in %c {
    %0 = gemm %a, %b.t
    store %c, %0
  }
}";

/// A product of own rows whose columns arrive, and another such tensor beside it.
pub(crate) const EXCHANGED: &str = "
kernel @exchanged(%a: &exchanged<bf16>, %b: &global<bf16>, %c: &mut sharded<bf16>) {
  for tile in %c {
    %0 = wait %a
    %1 = gemm %0, %b.t
    store %c, %1
  }
}";

/// Products that sum over gathered rows: of the right operand, of both.
pub(crate) const SUMMED: &str = "
kernel @summed(%a: &global<bf16>, %b: &gathered<bf16>, %c: &mut global<f32>) {
  for tile in %c {
    %0 = wait %b
    %1 = gemm %a.t, %b
    store %c, %1
  }
}";

pub(crate) const BOTH_SUMMED: &str = "
kernel @both_summed(%a: &gathered<bf16>, %b: &gathered<bf16>, %c: &mut global<bf16>) {
  for tile in %c {
    %0 = wait %a
    %1 = wait %b
    %2 = gemm %a.t, %b
    store %c, %2
  }
}";

/// From columns to rows and back to columns, f32.
pub(crate) const EXCHANGE_ALONE: &str = "
kernel @exchange_alone(%x: &exchanged<bf16>, %c: &mut exchanged<bf16>, %d: &mut sharded<f32>) {
  for tile in %c {
    %0 = wait %x
    %1 = load %0
    store %c, %1
    store %d, %1
  }
}";

/// A protocol whose role adds, as `examples/sum_ahead.rs` writes it.
pub(crate) const SUM_AHEAD: &str =
    include_str!("../../../flux-ir/tests/filetests/kernel/sum_ahead.flux");

/// Every kernel that some schedule here compiles.
pub(crate) const ALL: [&str; 19] = [
    SUM_AHEAD,
    PLAIN,
    PLAIN_F16,
    NOT_TRANSPOSED,
    BIAS_GELU,
    SWIGLU,
    TWO_OUTPUTS,
    FUNCTIONS,
    GATHER,
    SCATTER,
    GATHER_ALONE,
    SCATTER_ALONE,
    GATHER_BESIDE,
    REDUCE,
    EXCHANGE,
    EXCHANGED,
    SUMMED,
    BOTH_SUMMED,
    EXCHANGE_ALONE,
];
