//! Kernels of the language against the Kernel IR they mean, in text form.

use flux_ir::{Kernel, Span};
use flux_syntax::{Module, ModuleScope, parse_kernel, read_file};

fn kernel(source: &str) -> Kernel {
    let function = syn::parse_str(source).expect("a function");
    parse_kernel(&function, &ModuleScope::default()).unwrap_or_else(|e| panic!("{e}"))
}

/// The ops of the one kernel in `source`, without spans.
fn ops(kernel: &Kernel) -> Vec<String> {
    let mut kernel = kernel.clone();
    let values: Vec<_> = kernel.ops.handles().collect();
    for value in values {
        kernel.ops[value].span = Span::UNKNOWN;
    }
    let text = kernel.to_string();
    let lines = text.lines().map(|line| line.trim().to_owned());
    lines
        .skip_while(|line| !line.starts_with("for"))
        .skip(1)
        .take_while(|line| line != "}")
        .collect()
}

fn body(params: &str, body: &str) -> Vec<String> {
    ops(&kernel(&format!("fn k({params}) {{ for tile in c.tiles() {{ {body} }} }}")))
}

const AB: &str = "a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>";

#[test]
fn the_readme_kernel_with_its_spans() {
    let source = "\
fn ag_gemm_gelu(a: &Gathered<bf16>, b: &Global<bf16>, bias: &Global<f32>, c: &mut Global<bf16>) {
    for tile in c.tiles() {
        let a = a.wait(tile.rows());
        let acc = gemm(a, b.t(), tile);
        c.store(tile, gelu(acc + bias.cols(tile)));
    }
}";
    let read = kernel(source);
    let expected: Kernel = "\
kernel @ag_gemm_gelu(%a: &gathered<bf16> @1:17, %b: &global<bf16> @1:37, %bias: &global<f32> @1:55, \
%c: &mut global<bf16> @1:75) { @1:4
  for tile in %c { @2:5
    %0 = wait %a @3:19
    %1 = gemm %0, %b.t @4:19
    %2 = cols %bias @5:39
    %3 = add %1, %2 @5:32
    %4 = gelu %3 @5:23
    store %c, %4 @5:11
  }
}"
    .parse()
    .unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(read, expected);
}

#[test]
fn either_operand_may_be_transposed() {
    let params = "a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>";
    for (written, read) in
        [("a, b", "%a, %b"), ("a.t(), b", "%a.t, %b"), ("a.t(), b.t()", "%a.t, %b.t")]
    {
        assert_eq!(
            body(params, &format!("c.store(tile, gemm({written}, tile));")),
            [format!("%0 = gemm {read}"), "store %c, %0".to_owned()]
        );
    }
}

#[test]
fn scattered_outputs_are_reduced_and_stored() {
    let params = "a: &Global<bf16>, b: &Global<bf16>, c: &mut Scattered<bf16>";
    assert_eq!(
        body(params, "c.add(tile, gemm(a, b.t(), tile));"),
        ["%0 = gemm %a, %b.t", "%1 = reduce %c, %0", "store %c, %1"]
    );
    let params = "a: &Global<bf16>, b: &Global<bf16>, bias: &Global<f32>, \
                  residual: &Sharded<bf16>, c: &mut Scattered<bf16>";
    let text = "let total = c.reduce(tile, gemm(a, b, tile)); \
                c.store(tile, total + bias.cols(tile) + residual.load(tile));";
    assert_eq!(
        body(params, text),
        [
            "%0 = gemm %a, %b",
            "%1 = reduce %c, %0",
            "%2 = cols %bias",
            "%3 = add %1, %2",
            "%4 = load %residual",
            "%5 = add %3, %4",
            "store %c, %5",
        ]
    );
}

#[test]
fn swiglu_gates_one_product_by_another() {
    let params = "x: &Global<f16>, w1: &Global<f16>, w3: &Global<f16>, c: &mut Global<f16>";
    assert_eq!(
        body(params, "c.store(tile, silu(gemm(x, w1.t(), tile)) * gemm(x, w3.t(), tile));"),
        [
            "%0 = gemm %x, %w1.t",
            "%1 = silu %0",
            "%2 = gemm %x, %w3.t",
            "%3 = mul %1, %2",
            "store %c, %3"
        ]
    );
}

#[test]
fn arithmetic_scalars_literals_and_casts() {
    let params = "a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>, alpha: f32";
    let text = "let acc = gemm(a, b.t(), tile); \
                c.store(tile, -(alpha * acc / 2.0f32) - cast::<f16>(acc).cast::<bf16>());";
    assert_eq!(
        body(params, text),
        [
            "%0 = gemm %a, %b.t",
            "%1 = scalar %alpha",
            "%2 = mul %1, %0",
            "%3 = const 2.0",
            "%4 = div %2, %3",
            "%5 = neg %4",
            "%6 = cast %0 to f16",
            "%7 = cast %6 to bf16",
            "%8 = sub %5, %7",
            "store %c, %8",
        ]
    );
}

#[test]
fn functions_have_a_method_form() {
    for (function, method) in [
        ("relu(x)", "x.relu()"),
        ("gelu(x)", "x.gelu()"),
        ("gelu_tanh(x)", "x.gelu_tanh()"),
        ("silu(x)", "x.silu()"),
        ("exp(x)", "x.exp()"),
        ("tanh(x)", "x.tanh()"),
        ("max(x, 0.5)", "x.max(0.5)"),
        ("min(x, x)", "x.min(x)"),
        ("flux::lang::relu(x)", "x.relu()"),
    ] {
        let of = |e: &str| body(AB, &format!("let x = gemm(a, b.t(), tile); c.store(tile, {e});"));
        assert_eq!(of(function), of(method), "{function}");
        assert_eq!(of(function).len(), if function.contains("0.5") { 4 } else { 3 });
    }
}

#[test]
fn closures_see_the_names_of_their_place() {
    let text = "let acc = gemm(a, b.t(), tile); \
                let half = 0.5; \
                let f = |x: Fragment| { let y = x * half; y + acc }; \
                let half = 4.0; \
                c.store(tile, f(acc));";
    assert_eq!(
        body(AB, text),
        [
            "%0 = gemm %a, %b.t",
            "%1 = const 0.5",
            "%2 = const 4.0",
            "%3 = mul %0, %1",
            "%4 = add %3, %0",
            "store %c, %4",
        ]
    );
}

#[test]
fn map_and_zip_map_take_closures_names_and_functions() {
    let of = |e: &str| body(AB, &format!("let x = gemm(a, b.t(), tile); c.store(tile, {e});"));
    assert_eq!(of("x.map(|x| gelu(x))"), of("gelu(x)"));
    assert_eq!(of("x.map(gelu)"), of("gelu(x)"));
    assert_eq!(of("{ let f = |x| x + x; x.map(f) }"), of("x + x"));
    assert_eq!(of("x.zip_map(x, |x, y| x * y)"), of("x * x"));
    assert_eq!(of("(&x).zip_map(*&x, max)"), of("max(x, x)"));
}

#[test]
fn several_outputs_are_stored_from_one_accumulator() {
    let params = "a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>, d: &mut Global<f32>, s: &Global<f32>";
    let text = "let acc = gemm(a, b.t(), tile) * s.rows(tile); d.store(tile, acc); c.store(tile, relu(acc));";
    let ops = body(params, text);
    assert_eq!(
        ops[1..],
        ["%1 = rows %s", "%2 = mul %0, %1", "store %d, %2", "%4 = relu %2", "store %c, %4"]
    );
}

#[test]
fn helpers_and_constants_of_the_module_are_evaluated_in_place() {
    let source = "
        #[flux::module]
        mod kernels {
            const HALF: f32 = 0.5;
            const QUARTER: f32 = HALF * HALF;
            fn gelu(x: Fragment) -> Fragment { x * QUARTER }
            fn finish(c: &mut Global<bf16>, at: Tile, x: &Fragment) { c.store(at, self::gelu(*x)); }
            #[kernel]
            fn k(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
                for tile in c.tiles() { finish(c, tile, &gemm(a, b.t(), tile)); }
            }
        }";
    let module: Module = syn::parse_str(source).expect("a module");
    let function = module.kernels().next().expect("a kernel");
    let read = parse_kernel(function, &module.scope()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(
        ops(&read),
        [
            "%0 = gemm %a, %b.t",
            "%1 = const 0.5",
            "%2 = const 0.5",
            "%3 = mul %1, %2",
            "%4 = mul %0, %3",
            "store %c, %4",
        ],
        "the module's own `gelu` hides the one of the prelude, as in Rust"
    );
    let found = read_file(source).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(found[0].path, "kernels::k");
    assert_eq!(found[0].kernel.as_ref().ok(), Some(&read), "a file reads as the macro does");
}

#[test]
fn definitions_may_precede_the_loop() {
    let source = "fn k(a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>) {
        let act = |x| relu(x) * 2.0;
        for tile in c.tiles() { c.store(tile, act(gemm(a, b, tile))) }
    }";
    assert_eq!(
        ops(&kernel(source)),
        ["%0 = gemm %a, %b", "%1 = relu %0", "%2 = const 2.0", "%3 = mul %1, %2", "store %c, %3"]
    );
}

#[test]
fn a_file_yields_kernels_of_modules_and_of_functions() {
    let source = "
        mod inner { #[flux::kernel] #[schedule(host)] fn one(c: &mut Global<f32>) { } }
        #[test]
        fn uses() {
            #[kernel]
            fn two(a: &Global<f32>, c: &mut Global<f32>) {
                for tile in c.tiles() { c.store(tile, gemm(a, a, tile)); }
            }
        }
        fn other() {}";
    let found = read_file(source).unwrap_or_else(|e| panic!("{e}"));
    let paths: Vec<_> = found.iter().map(|kernel| kernel.path.as_str()).collect();
    assert_eq!(paths, ["inner::one", "two"]);
    assert!(found[0].kernel.is_err() && found[1].kernel.is_ok());
    assert_eq!(found[0].schedules.as_ref().map(Vec::len), Ok(1));
}

#[test]
fn a_file_that_is_no_rust_says_where() {
    let error = read_file("fn f( {").expect_err("no Rust");
    assert!(error.to_string().starts_with("error[syntax]"), "{error}");
}

#[test]
fn products_that_sum_over_gathered_rows() {
    let right = body(
        "a: &Global<bf16>, b: &Gathered<bf16>, c: &mut Global<bf16>",
        "let b = b.wait(tile.reduction()); c.store(tile, gemm(a.t(), b, tile));",
    );
    assert_eq!(right, ["%0 = wait %b", "%1 = gemm %a.t, %b", "store %c, %1"]);
    let left = body(
        "a: &Gathered<bf16>, b: &Gathered<bf16>, c: &mut Global<bf16>",
        "let x = b.wait(tile.reduction()); let part = tile.reduction();
         c.store(tile, gemm(a.wait(part).t(), x, tile));",
    );
    let both = ["%0 = wait %b", "%1 = wait %a", "%2 = gemm %a.t, %b", "store %c, %2"];
    assert_eq!(left, both);
}
