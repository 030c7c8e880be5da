//! What cannot be read is an error: sources nested too deep, kernels that grow without end, and
//! code of which rustc decides later whether it exists.

use flux_syntax::{Module, ModuleScope, parse_kernel, read_file};

const AB: &str = "a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>";

/// The kernel that stores `value`, in the text form, or what is said about it.
fn said(value: &str) -> String {
    said_by(&format!("c.store(tile, {value});"), &ModuleScope::default())
}

fn said_by(body: &str, scope: &ModuleScope) -> String {
    said_of(&format!("fn k({AB}) {{ for tile in c.tiles() {{ {body} }} }}"), scope)
}

fn said_of(source: &str, scope: &ModuleScope) -> String {
    match parse_kernel(&syn::parse_str(source).expect("a function"), scope) {
        Ok(kernel) => kernel.to_string(),
        Err(errors) => errors.to_string(),
    }
}

fn module(source: &str) -> ModuleScope {
    syn::parse_str::<Module>(&format!("mod m {{ {source} }}")).expect("a module").scope()
}

#[track_caller]
fn refused(said: &str, message: &str) {
    assert!(said.contains(message), "{said}");
}

/// An expression of this depth.
type Of = fn(usize) -> String;

const DEEP: &str = "nested too deep to be read";
const LATER: &str = "after the macro has read it";

#[test]
fn deep_expressions() {
    let parentheses = |n| format!("{}1.0{}", "(".repeat(n), ")".repeat(n));
    let chain = |n| format!("gemm(a, b, tile){}", ".relu()".repeat(n));
    let signs = |n| format!("{}1.0", "- ".repeat(n));
    let sum = |n| format!("gemm(a, b, tile){}", " + 1.0".repeat(n));
    let all: [(Of, usize); 4] = [(parentheses, 50), (chain, 150), (signs, 150), (sum, 150)];
    for (of, fine) in all {
        let fine = said(&of(fine));
        assert!(fine.contains("store"), "{fine}");
        let source = format!(
            "#[kernel] fn k({AB}) {{ for tile in c.tiles() {{ c.store(tile, {}); }} }}",
            of(250)
        );
        let said = match read_file(&source) {
            Ok(found) => format!("{:?}", found[0].kernel),
            Err(error) => error.to_string(),
        };
        refused(&said, DEEP);
    }
}

#[test]
fn deep_sources() {
    let nested = |n| {
        let (open, close) = ("(".repeat(n), ")".repeat(n));
        format!(
            "#[kernel] fn k({AB}) {{ for tile in c.tiles() {{ c.store(tile, {open}1.0{close}); }} }}"
        )
    };
    refused(&read_file(&nested(1000)).expect_err("a mistake").to_string(), DEEP);
    refused(&read_file(&nested(100_000)).expect_err("a mistake").to_string(), DEEP);
    let signs = format!("const X: f32 = {}1.0;", "-".repeat(100_000));
    refused(&read_file(&signs).expect_err("a mistake").to_string(), DEEP);
    assert_eq!(read_file(&nested(50)).expect("a file").len(), 1);
}

#[test]
fn helpers_that_double() {
    let mut source = "fn f0(x: Fragment) -> Fragment { x }".to_owned();
    let mut silent = source.clone();
    for i in 1..=28 {
        let callee = i - 1;
        source += &format!("fn f{i}(x: Fragment) -> Fragment {{ f{callee}(x) + f{callee}(x) }}");
        silent += &format!("fn f{i}(x: Fragment) -> Fragment {{ f{callee}(f{callee}(x)) }}");
    }
    let body = |i| format!("c.store(tile, f{i}(gemm(a, b, tile)));");
    let message = "more than 4096 operations";
    refused(&said_by(&body(28), &module(&source)), message);
    refused(&said_by(&body(28), &module(&silent)), message);
    let fine = said_by(&body(8), &module(&source));
    assert_eq!(fine.matches("add ").count(), 255, "{fine}");
}

#[test]
fn closures_without_end() {
    let said = said_by("let f = |g| g(g); c.store(tile, f(f));", &ModuleScope::default());
    refused(&said, "closures call each other without end");
}

#[test]
fn conditions_inside_of_a_kernel() {
    for value in [
        "{ #[cfg(x)] let y = 1.0; 1.0 }",
        "#[cfg(x)] gemm(a, b, tile)",
        "{ #[cfg_attr(x, cfg(y))] let y = 1.0; 1.0 }",
        "{ let f = |#[cfg(x)] y: Fragment| 1.0; 1.0 }",
        "{ { #[cfg(x)] { 1.0 } } }",
    ] {
        refused(&said(value), LATER);
    }
    let signature = format!("fn k({AB}, #[cfg(x)] d: f32) {{ }}");
    refused(&said_of(&signature, &ModuleScope::default()), LATER);
    let statement = "#[cfg(x)] c.store(tile, gemm(a, b, tile));";
    refused(&said_by(statement, &ModuleScope::default()), LATER);
    let fine = said("{ #[allow(unused)] let y = 1.0; 1.0 }");
    assert!(fine.contains("store"), "{fine}");
}

#[test]
fn conditions_in_a_module() {
    let store =
        |value: &str, source: &str| said_by(&format!("c.store(tile, {value});"), &module(source));
    let fine = store("1.0", "#[cfg(x)] const X: f32 = 1.0;");
    assert!(fine.contains("store"), "{fine}");
    refused(&store("X", "#[cfg(x)] const X: f32 = 1.0;"), LATER);
    refused(&store("f(1.0)", "#[cfg_attr(x, cfg(y))] fn f(x: f32) -> f32 { x }"), LATER);
    refused(&store("f(1.0)", "fn f(x: f32) -> f32 { #[cfg(y)] let x = 1.0; x }"), LATER);
    refused(&store("X", "const X: f32 = { #[cfg(y)] { 1.0 } };"), LATER);
    let twice = "const X: f32 = 1.0; const X: f32 = 2.0;";
    refused(&store("X", twice), "there are two `X` in the module");
    let twice = "fn f(x: f32) -> f32 { x } fn f(x: f32) -> f32 { x + x }";
    refused(&store("f(1.0)", twice), "there are two `f` in the module");
    let both = "#[cfg(all())] const X: f32 = 1.0; #[cfg(any())] const X: f32 = 100.0;";
    refused(&store("X", both), LATER);
}

#[test]
fn raw_identifiers_are_the_same_names() {
    // Without positions: those of raw names differ.
    let read = |body: &str, scope: &ModuleScope| -> String {
        let text = said_by(body, scope);
        let line = |line: &str| line.split('@').next().unwrap_or_default().trim_end().to_owned();
        text.lines().map(line).collect::<Vec<_>>().join("\n")
    };
    let none = ModuleScope::default();
    let shadowed = read("let x = 1.0; let r#x = 2.0; c.store(r#tile, x);", &none);
    assert_eq!(shadowed, read("let x = 1.0; let x = 2.0; c.store(tile, x);", &none));
    let scope = module("const r#X: f32 = 3.0; fn r#f(r#y: f32) -> f32 { y * X }");
    let helper = read("c.store(tile, f(2.0).r#max(1.0));", &scope);
    assert_eq!(helper, read("c.store(tile, r#f(2.0).max(1.0));", &scope));
    assert!(helper.contains("mul"), "{helper}");
}

#[test]
fn methods_of_numbers() {
    for method in ["relu()", "cast::<bf16>()", "map(|x| x)", "gelu()"] {
        refused(&said(&format!("1.0_f32.{method}")), "a number has no method");
        refused(&said(&format!("(-1.0 * 2.0).{method}")), "a number has no method");
        let fine = said(&format!("(gemm(a, b, tile) * 2.0).{method}"));
        assert!(fine.contains("store"), "{fine}");
    }
    let fine = said("1.0_f32.max(2.0).exp()");
    assert!(fine.contains("exp"), "{fine}");
}

#[test]
fn paths_of_traits() {
    refused(&said("<f32>::relu(1.0)"), "a kernel names no traits");
}
