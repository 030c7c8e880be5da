//! What lies outside of the language: rule, place and words, one mistake each.

use flux_syntax::{Module, ModuleScope, parse_kernel};

/// What is said about a kernel whose loop has this body; the place as the source text from there.
fn said(params: &str, body: &str) -> String {
    let source = format!("fn k({params}) {{\nfor tile in c.tiles() {{\n{body}\n}}\n}}");
    said_of(&source, &ModuleScope::default())
}

fn said_of(source: &str, scope: &ModuleScope) -> String {
    let function = syn::parse_str(source).expect("a function");
    let errors = parse_kernel(&function, scope).expect_err("a mistake");
    let lines: Vec<&str> = source.lines().collect();
    let mut text = String::new();
    for error in &errors.0 {
        let line = lines[error.span.line as usize - 1];
        let place = line.split_at(error.span.column as usize - 1).1;
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let end = place.find(|c| !word(c)).unwrap_or(place.len()).max(1);
        let token = &place[..end];
        let help = error.help.as_deref().expect("help");
        text.push_str(&format!("{} at `{token}`: {} ({help})\n", error.rule, error.message));
    }
    text.trim_end().to_owned()
}

const AB: &str = "a: &Global<bf16>, b: &Global<bf16>, c: &mut Global<bf16>";
const AG: &str = "a: &Gathered<bf16>, b: &Global<bf16>, c: &mut Global<bf16>";
const RS: &str = "a: &Global<bf16>, b: &Global<bf16>, c: &mut Scattered<bf16>";

#[track_caller]
fn check(params: &str, body: &str, expected: &str) {
    assert_eq!(said(params, body), expected);
}

#[test]
fn integers_are_compared_by_methods() {
    check(
        AB,
        "let x = min(rank(), world());",
        "types at `min`: `min` is of tiles and f32, found integers (of integers it is a method: `a.min(b)`)",
    );
}

#[test]
fn conditions_and_loops() {
    let help = "choose by arithmetic: `x.max(0.0)`, `x.min(1.0)`, `relu(x)`";
    check(AB, "if true { }", &format!("language at `if`: a tile has no conditions ({help})"));
    check(
        AB,
        "match 1.0 { _ => {} }",
        &format!("language at `match`: a tile has no conditions ({help})"),
    );
    let help = "the loop over tiles is the only one; `gemm` contains the sum over k";
    for word in ["while true", "loop", "for i in 0..4"] {
        let first = word.split(' ').next().expect("a word");
        check(
            AB,
            &format!("{word} {{ }}"),
            &format!("language at `{first}`: a tile is computed without loops ({help})"),
        );
    }
    check(
        AB,
        "break;",
        "language at `break`: every tile is computed, so there is no `break` (remove it: the schedule decides the order of the tiles)",
    );
    check(
        AB,
        "continue;",
        "language at `continue`: every tile is computed, so there is no `continue` (remove it: the schedule decides the order of the tiles)",
    );
    check(
        AB,
        "return;",
        "language at `return`: `return` is not part of a kernel (every tile is stored: write `c.store(tile, …);`)",
    );
    check(
        AB,
        "c.store(tile, gemm(a, b, tile))?;",
        "language at `?`: nothing in a kernel fails, so there is no `?` (remove it: `launch` returns the errors)",
    );
}

#[test]
fn assignment_indexing_and_macros() {
    let help = "write `let x = …;`: a name can be reused for a new value";
    check(
        AB,
        "let x = 1.0; x = 2.0;",
        &format!("language at `=`: values are never assigned ({help})"),
    );
    check(
        AB,
        "let x = 1.0; x += 2.0;",
        &format!("language at `+`: values are never assigned ({help})"),
    );
    check(
        AB,
        "let mut x = 1.0;",
        "language at `mut`: values are never assigned (write `let x = …;` again for a new value: names can be reused)",
    );
    check(
        AB,
        "let x = a[0];",
        "language at `[`: tensors are not indexed (read a tile: `x.load(tile)`, `x.cols(tile)` for a vector over the columns, `x.rows(tile)` for one over the rows)",
    );
    check(
        AB,
        "println!();",
        "language at `println`: macros are not expanded in a kernel (write the call out, or make it a function in the same `#[flux::module] mod`)",
    );
    check(
        AB,
        "let (x, y) = (1.0, 2.0);",
        "language at `(`: expected a name, found a pattern (write `let name = …;`, one value each)\n\
        language at `(`: a kernel has no tuples, arrays or structs (name each value: `let x = …;`)",
    );
    check(
        AB,
        "fn f() {}",
        "language at `fn`: a kernel contains no items (put kernel and item in one `#[flux::module] mod`)",
    );
    check(AB, "unsafe { }", "language at `unsafe`: a kernel is safe (remove `unsafe`)");
}

#[test]
fn literals() {
    check(
        AB,
        "let x = 1.0f64;",
        "language at `1`: expected an f32, found an `f64` (write `1.0`: arithmetic is done in f32)",
    );
    check(
        AB,
        "c.store(tile, gemm(a, b.t(), tile) * 2);",
        "language at `2`: expected an f32, found an integer (write `2.0`: arithmetic is done in f32)",
    );
    check(AB, "let x = \"text\";", "language at `\"`: a kernel has no text (remove it)");
    check(
        AB,
        "let x = 1.0 as bf16;",
        "language at `as`: tiles are not converted by `as` (write `.cast::<bf16>()`)",
    );
    check(
        AB,
        "let x = 1.0 % 2.0;",
        "language at `%`: tiles have no operator `%` (there are `+`, `-`, `*` and `/`)",
    );
    check(
        AB,
        "let x = 1.0 < 2.0;",
        "language at `<`: a tile has no conditions (choose by arithmetic: `x.max(0.0)`, `x.min(1.0)`, `relu(x)`)",
    );
}

#[test]
fn unknown_names() {
    check(
        AB,
        "c.store(tile, gleu(gemm(a, b, tile)));",
        "types at `gleu`: `gleu` is unknown to the kernel (did you mean `gelu`?)",
    );
    check(
        AB,
        "let acc = gemm(a, b, tile); c.store(tile, acx);",
        "types at `acx`: `acx` is unknown to the kernel (did you mean `acc`?)",
    );
    check(
        AB,
        "c.store(tile, softmax(gemm(a, b, tile)));",
        "types at `softmax`: `softmax` is unknown to the kernel (put kernel and `softmax` in one `#[flux::module] mod`; a kernel sees its module and the functions of the prelude)",
    );
    check(
        AB,
        "c.stor(tile, gemm(a, b, tile));",
        "types at `stor`: `c` has no method `stor` (did you mean `store`?)",
    );
    check(
        AB,
        "c.store(tile, gemm(a, b, tile).rleu());",
        "types at `rleu`: a tile has no method `rleu` (did you mean `relu`?)",
    );
    check(
        AB,
        "let r = tile.row();",
        "types at `row`: a tile has no method `row` (there is `tile.rows()`; columns are read by `bias.cols(tile)`)",
    );
}

#[test]
fn wrong_arity() {
    check(
        AB,
        "c.store(tile, gemm(a, b));",
        "types at `gemm`: `gemm` takes 3 arguments, found 2 (write `gemm(a, b.t(), tile)`)",
    );
    check(
        AB,
        "c.store(gemm(a, b, tile));",
        "types at `store`: `store` takes 2 arguments, found 1 (write `c.store(tile, x)`)",
    );
    check(
        AB,
        "let x = relu(1.0, 2.0);",
        "types at `relu`: `relu` takes 1 argument, found 2 (write `relu(x)`)",
    );
    check(
        AB,
        "let f = |x| x; let y = f();",
        "types at `f`: `closure` takes 1 argument, found 0 (write `one argument for each parameter`)",
    );
}

#[test]
fn rows_in_flight() {
    check(
        AG,
        "c.store(tile, gemm(a, b.t(), tile));",
        "types at `a`: rows of `a` may still be in flight (write `let a = a.wait(tile.rows());`)",
    );
    check(
        AG,
        "c.store(tile, a.load(tile));",
        "types at `load`: rows of `a` may still be in flight (write `let a = a.wait(tile.rows());` and `a.load(tile)`)",
    );
    check(
        AG,
        "let r = a.wait(tile.rows());",
        "language at `wait`: the rows of `a` are waited for and never used (write `let a = a.wait(tile.rows());` and multiply with it, or remove the wait)",
    );
    check(
        AG,
        "let a = a.wait(tile); c.store(tile, gemm(a, b.t(), tile));",
        "types at `tile`: expected the rows of the tile, or what its products sum over (write `a.wait(tile.rows())`, or `a.wait(tile.reduction())`)",
    );
}

#[test]
fn rows_that_are_summed_over() {
    check(
        AG,
        "c.store(tile, gemm(b, a, tile));",
        "types at `a`: rows of `a` may still be in flight from a peer (write `let a = a.wait(tile.reduction());` before it)",
    );
    check(
        AG,
        "let a = a.wait(tile.rows()); c.store(tile, gemm(b.t(), a, tile));",
        "types at `a`: the right operand of `gemm` is summed over by rows, these are the tile's (wait for what is summed over: `tile.reduction()`)",
    );
    check(
        AG,
        "let a = a.wait(tile.reduction()); c.store(tile, gemm(a, b, tile));",
        "types at `a`: the rows of `a` are summed over, those of a left operand are the tile's (write `gemm(a.t(), b, tile)`, or `a.wait(tile.rows())`)",
    );
    check(
        AG,
        "let a = a.wait(tile.reduction()); c.store(tile, gemm(b, a.t(), tile));",
        "types at `a`: the rows of `a` are summed over, transposed they are columns (write `gemm(x, a, tile)`, or `gemm(a.t(), x, tile)`)",
    );
    check(
        AG,
        "let a = a.wait(tile.reduction()); c.store(tile, a.load(tile));",
        "types at `load`: gathered rows have no method `load` (multiply with it: `gemm(a.t(), x, tile)`, or `gemm(x.t(), b, tile)`)",
    );
    check(
        AG,
        "let r = a.wait(tile.reduction());",
        "language at `wait`: the rows of `a` are waited for and never used (write `let a = a.wait(tile.rows());` and multiply with it, or remove the wait)",
    );
    check(
        "a: &Exchanged<bf16>, b: &Global<bf16>, c: &mut Sharded<bf16>",
        "let a = a.wait(tile.reduction()); c.store(tile, gemm(a.t(), b, tile));",
        "types at `tile`: expected the rows of the tile (write `a.wait(tile.rows())`)",
    );
}

#[test]
fn tensors_of_another_distribution() {
    check(
        AB,
        "c.add(tile, gemm(a, b, tile));",
        "types at `add`: `c` is a `Global`: nothing is summed into it (write `c.store(tile, …)`, or declare `c: &mut Scattered<T>` or `&mut Reduced<T>` to sum over the ranks)",
    );
    check(
        RS,
        "c.add(tile, c.load(tile));",
        "types at `load`: `c` is an output and is never read (an output is only written; read an input, `&Global<T>` or `&Sharded<T>`)",
    );
    check(
        AB,
        "a.store(tile, gemm(a, b, tile));",
        "types at `store`: `a` is an input and is never written (declare it `a: &mut Global<T>` to write it)",
    );
    check(
        AB,
        "let x = a.wait(tile.rows());",
        "types at `wait`: `a` is this rank's own tensor: there is nothing to wait for (use `a` as it is, or declare `a: &Gathered<T>`)",
    );
    check(
        AB,
        "c.store(tile, a + 1.0);",
        "types at `a`: expected a tile or an f32, found the whole tensor `a` (write `a.load(tile)`, `a.cols(tile)` for a vector over the columns, or `a.rows(tile)` for one over the rows)",
    );
}

#[test]
fn statements_without_effect_and_closures_that_store() {
    check(
        AB,
        "gemm(a, b, tile);",
        "language at `gemm`: this statement does nothing (store it, `c.store(tile, …);`, or name it, `let x = …;`)",
    );
    check(
        AB,
        "let f = |x| c.store(tile, x); f(gemm(a, b, tile));",
        "language at `store`: a closure computes a value and stores nothing (store what it yields: `c.store(tile, f(x));`)",
    );
    check(
        AB,
        "let x = c.store(tile, gemm(a, b, tile));",
        "types at `c`: expected a value, found nothing (`store` and `add` yield no value)",
    );
}

#[test]
fn every_mistake_is_reported_and_none_twice() {
    let text = "let x = gleu(1.0f64); let y = x + 1.0; if true {} c.store(tile, y);";
    let said = said(AB, text);
    assert_eq!(said.lines().count(), 3, "{said}");
}

#[test]
fn signatures() {
    let of = |signature: &str| said_of(&format!("{signature} {{ }}"), &ModuleScope::default());
    let parameters = "a parameter is `&Global<T>`, `&mut Global<T>`, `&Gathered<T>`, `&Sharded<T>`, `&mut Sharded<T>`, `&mut Scattered<T>`, `&mut Reduced<T>`, `&Exchanged<T>`, `&mut Exchanged<T>` or `f32`, with `T` one of bf16, f16, f32";
    for (signature, expected) in [
        ("fn k(a: Vec<f32>)", format!("`Vec`: `Vec<f32>` cannot be a kernel parameter ({parameters})")),
        ("fn k(a: &Vec<f32>)", format!("`Vec`: `Vec<f32>` cannot be a kernel parameter ({parameters})")),
        ("fn k(a: &Gatherd<f32>)", "`Gatherd`: `Gatherd<f32>` cannot be a kernel parameter (did you mean `Gathered`?)".to_owned()),
        ("fn k(a: Global<f32>)", "`Global`: expected a reference, found `Global` by value (write `&Global<f32>`)".to_owned()),
        ("fn k(a: &Global<f64>)", "`f64`: expected an element type `bf16`, `f16` and `f32`, found `<f64>` (write `Global<bf16>`)".to_owned()),
        ("fn k(a: &mut Gathered<f32>)", "`Gathered`: a `Gathered` tensor is only read (write `&Gathered<f32>`, or `&mut Global<T>` for an output)".to_owned()),
        ("fn k(a: &Scattered<f32>)", "`Scattered`: a `Scattered` tensor is only written (write `&mut Scattered<f32>`; a shard that is read is `&Sharded<T>`)".to_owned()),
        ("fn k(a: f64)", "`f64`: expected `f32`, found `f64` (numbers passed at launch are `f32`: arithmetic is done in f32)".to_owned()),
        ("fn k() -> f32", "`f32`: a kernel returns nothing (write results through a `&mut Global<T>` or `&mut Scattered<T>` parameter)".to_owned()),
        ("fn k<T>()", "`T`: a kernel has no generic parameters (write one kernel for each element type; they can share helper functions in a `#[flux::module]`)".to_owned()),
        ("async fn k()", "`async`: a kernel is never `async` (write `fn k(…)`: it is compiled for the device, not called)".to_owned()),
        ("fn k((a, b): f32)", "`(`: expected a name for this parameter, found a pattern (`launch` repeats the names of the parameters: give this one a name)".to_owned()),
    ] {
        assert_eq!(of(signature), format!("language at {expected}"), "{signature}");
    }
}

#[test]
fn the_loop() {
    let of = |body: &str| said_of(&format!("fn k({AB}) {{ {body} }}"), &ModuleScope::default());
    let help = "write `for tile in c.tiles() { … }`";
    assert_eq!(
        of(""),
        format!("language at `k`: a kernel needs a loop over the tiles of an output ({help})")
    );
    let help = "write `for tile in c.tiles()`";
    assert_eq!(
        of("for tile in a.tiles() {}"),
        format!(
            "language at `tiles`: `a` is an input; a kernel goes over the tiles of an output ({help})"
        )
    );
    assert_eq!(
        of("for tile in 0..4 {}"),
        format!("language at `0`: expected a loop over the tiles of an output ({help})")
    );
    assert_eq!(
        of("for tile in c.tiles() {} for tile in c.tiles() {}"),
        "language at `for`: a kernel has one loop over tiles (several outputs are stored in the same loop; a second product is a second kernel)"
    );
    assert_eq!(
        of("c.tiles(); for tile in c.tiles() {}").lines().next().unwrap_or_default(),
        "language at `tiles`: a tile is computed without loops (the loop over tiles is the only one: `for tile in c.tiles() { … }`)"
    );
}

#[test]
fn helpers() {
    let source = "mod m {
        fn twice(x: Fragment) -> Fragment { twice(x) }
        fn index(x: Fragment) -> Fragment { x[0] }
        const N: u32 = 4;
        #[kernel] fn other(c: &mut Global<bf16>) {}
    }";
    let module: Module = syn::parse_str(source).expect("a module");
    let of = |e: &str| {
        let source = format!("fn k({AB}) {{ for tile in c.tiles() {{ c.store(tile, {e}); }} }}");
        let errors = parse_kernel(&syn::parse_str(&source).expect("a function"), &module.scope());
        errors.expect_err("a mistake").to_string()
    };
    assert!(of("twice(1.0)").contains("`twice` calls itself"), "{}", of("twice(1.0)"));
    let text = of("index(1.0) + index(2.0)");
    assert_eq!(text.matches("tensors are not indexed").count(), 1, "{text}");
    assert!(text.contains("note: called here"), "{text}");
    assert!(of("1.0 * N").contains("expected an f32, found an integer"));
    assert!(of("other(c)").contains("kernels do not call each other"));
    assert!(of("twise(1.0)").contains("did you mean `twice`?"));
    assert!(of("softmax(1.0)").contains("define `softmax` in this module"));
}
