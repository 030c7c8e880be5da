//! The text forms parse back, and malformed text is an error with a position, never a panic.

#[path = "text/generate.rs"]
mod generate;

use flux_ir::{Kernel, Program, Rule};
use generate::{kernel, program};
use proptest::prelude::*;

/// A text with some characters of it deleted, doubled, or replaced by tokens of the grammar.
fn mutated(text: &str, edits: &[(prop::sample::Index, u8)]) -> String {
    const PIECES: [&str; 12] =
        ["", "(", "{", "}", "%", "@1:", "..", " ceil(", "9999999999", "-", "\"", "∀ inf %x "];
    let mut chars: Vec<char> = text.chars().collect();
    for (index, kind) in edits {
        let at = index.index(chars.len().max(1)).min(chars.len());
        let piece = PIECES[usize::from(*kind) % PIECES.len()].chars();
        let end = (at + usize::from(kind % 3)).min(chars.len());
        chars.splice(at..end, piece);
    }
    chars.into_iter().collect()
}

fn mutations() -> impl Strategy<Value = Vec<Vec<(prop::sample::Index, u8)>>> {
    prop::collection::vec(prop::collection::vec(any::<(prop::sample::Index, u8)>(), 1..6), 32)
}

/// Failing inputs are printed, not stored.
fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn a_kernel_parses_back(kernel in kernel()) {
        let text = kernel.to_string();
        let parsed: Kernel = text.parse().map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
        prop_assert_eq!(&parsed, &kernel, "{}", text);
        prop_assert_eq!(parsed.to_string(), text);
    }

    #[test]
    fn a_program_parses_back(program in program()) {
        let text = program.to_string();
        let parsed: Program =
            text.parse().map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
        prop_assert_eq!(&parsed, &program, "{}", text);
        prop_assert_eq!(parsed.to_string(), text);
    }
}

proptest! {
    #![proptest_config(config(4096))]

    #[test]
    fn every_number_keeps_its_bits(bits: u32) {
        let number = f32::from_bits(bits);
        let mut text = String::from("kernel @k(%c: &mut global<f32>) {\n  for tile in %c {\n");
        text.push_str(&format!("    %0 = const {}\n  }}\n}}\n", shown(number)));
        let kernel: Kernel = text.parse().map_err(|e| TestCaseError::fail(format!("{e}")))?;
        let Some(flux_ir::kernel::Op::Const(read)) = kernel.ops.values().next().map(|e| e.op.clone())
        else {
            return Err(TestCaseError::fail("no constant"));
        };
        prop_assert_eq!(read.to_bits(), bits);
        prop_assert_eq!(kernel.to_string(), text);
    }

    #[test]
    fn any_text_is_read_or_refused(text in ".{0,200}") {
        refused_at_a_position(text.parse::<Kernel>().err())?;
        refused_at_a_position(text.parse::<Program>().err())?;
    }
}

/// The number as the kernel writer shows it.
fn shown(number: f32) -> String {
    if number.is_nan() && number.to_bits() != f32::NAN.to_bits() {
        format!("nan({})", number.to_bits())
    } else {
        format!("{number:?}").replace("NaN", "nan")
    }
}

fn refused_at_a_position(errors: Option<flux_ir::Diagnostics>) -> Result<(), TestCaseError> {
    if let Some(errors) = errors {
        prop_assert!(!errors.is_empty());
        for error in errors.0 {
            prop_assert_eq!(error.rule, Rule::Syntax);
            prop_assert!(error.span.is_known());
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(128))]

    /// 128 kernels, 32 mutations of each: 4096 texts.
    #[test]
    fn a_mutated_kernel_is_read_or_refused_with_a_position(
        kernel in kernel(),
        mutations in mutations(),
    ) {
        let text = kernel.to_string();
        for edits in mutations {
            refused_at_a_position(mutated(&text, &edits).parse::<Kernel>().err())?;
        }
    }

    /// 128 Programs, 32 mutations of each: 4096 texts.
    #[test]
    fn a_mutated_program_is_read_or_refused_with_a_position(
        program in program(),
        mutations in mutations(),
    ) {
        let text = program.to_string();
        for edits in mutations {
            refused_at_a_position(mutated(&text, &edits).parse::<Program>().err())?;
        }
    }
}

#[test]
fn nesting_without_end_is_refused() {
    let head = "program @deep for host { tile (1, 1, 1) stages 2 consumers cooperative let %x = ";
    for open in ["(", "min(", "ceil(1 / ("] {
        let error = format!("{head}{}", open.repeat(100_000)).parse::<Program>().expect_err("deep");
        assert!(error.to_string().contains("levels"), "{error}");
    }
    let long = format!("{head}{}1 }}", "1 + ".repeat(100_000));
    assert!(long.parse::<Program>().expect_err("long").to_string().contains("levels"));
    let loops = "program @deep for host { tile (1, 1, 1) stages 2 consumers cooperative \
                 agent a on ctas { "
        .to_owned()
        + &"for %x in 0..1 { ".repeat(100_000);
    assert!(loops.parse::<Program>().expect_err("deep").to_string().contains("levels"));
}

#[test]
fn an_error_names_what_was_expected_and_found() {
    let text = "kernel @k(%a: &global<bf16>, %c: &mut global<f32>) {\n  for tile in %c {\n    \
                %0 = gelu %x\n  }\n}\n";
    let error = text.parse::<Kernel>().expect_err("no value");
    assert_eq!(error.to_string(), "error[syntax]: expected a value `%0`, found `%x`\n  --> 3:15");
    let error = text.replace("gelu %x", "wait %d").parse::<Kernel>().expect_err("no parameter");
    assert_eq!(error.to_string(), "error[syntax]: there is no parameter `%d`\n  --> 3:15");
}
