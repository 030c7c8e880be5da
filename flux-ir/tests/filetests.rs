//! Runs the files under `tests/filetests`; `FLUX_BLESS=1` rewrites them.
//!
//! | folder | what a file shows |
//! |---|---|
//! | `kernel` | a kernel that is printed as it was read |
//! | `program` | a Program that is printed as it was read, and passes the checker |
//! | `lower` | a kernel and the Program that the default schedule makes of it, which passes |
//! | `verify` | a Program or a schedule that breaks rules: `; error[rule]: …` stands behind the offending line (the one that carries the diagnostic's `@line:column`, or else the first) |
//!
//! | `faults` | a fault seen in the field, in the same way; `; rule: …` above names the rule it deserves, `; base: …` the sound Program it was made from |
//!
//! A `verify` or `faults` file whose name ends in `_passes` has no expectation and passes. The name of
//! any other `verify` file begins with a rule that it breaks.
//!
//! `; launch m 16 n 16 k 8 world 2 ctas 4` above a Program checks that launch too; with `resident 2`, on a
//! device that holds so many CTAs of it at once. Lines with `rank 0`, `rank 1`, … are the launches of the
//! ranks of one world, and are checked to agree.

use flux_ir::eval::Launch;
use flux_ir::{Diagnostic, Diagnostics, Kernel, Program, Rule, Schedule, Shape, check, lower};
use std::fs;
use std::path::{Path, PathBuf};

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests").join(folder);
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "flux"));
    files.sort();
    assert!(!files.is_empty(), "no files in {}", folder.display());
    files
}

/// Compares `shown` with what the file holds, or writes it there.
fn compare(file: &Path, held: &str, shown: &str, wrong: &mut Vec<String>) {
    if held == shown {
        return;
    }
    if std::env::var_os("FLUX_BLESS").is_some() {
        fs::write(file, shown).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        return;
    }
    let line = held.lines().zip(shown.lines()).position(|(a, b)| a != b);
    let line = line.unwrap_or(held.lines().count().min(shown.lines().count()));
    wrong.push(format!(
        "{}:{}:\n  file: {}\n  new:  {}",
        file.display(),
        line + 1,
        held.lines().nth(line).unwrap_or("(end)"),
        shown.lines().nth(line).unwrap_or("(end)"),
    ));
}

/// Runs `show` on every file of a folder and compares the file with what it gives.
fn each(folder: &str, show: impl Fn(&str, &Path) -> Result<String, Diagnostics>) {
    let mut wrong = Vec::new();
    for file in files(folder) {
        let held = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        match show(&held, &file) {
            Ok(shown) => compare(&file, &held, &shown, &mut wrong),
            Err(errors) => wrong.push(format!("{}:\n{errors}", file.display())),
        }
    }
    assert!(wrong.is_empty(), "{}\nFLUX_BLESS=1 rewrites", wrong.join("\n"));
}

#[test]
fn kernels_print_as_they_were_read() {
    each("kernel", |text, _| Ok(text.parse::<Kernel>()?.to_string()));
}

#[test]
fn programs_print_as_they_were_read_and_pass() {
    each("program", |text, _| {
        let program: Program = text.parse()?;
        let shown = program.to_string();
        check::verify(program)?;
        Ok(shown)
    });
}

#[test]
fn kernels_lower_to_programs_that_pass() {
    each("lower", |text, _| {
        let end = text.find("\nprogram ").map_or(text.len(), |at| at + 1);
        let kernel: Kernel = text[..end].parse()?;
        let program = lower::lower(&kernel, &schedule(&kernel))?;
        let shown = format!("{kernel}\n{program}");
        check::verify(program)?;
        Ok(shown)
    });
}

/// The default schedule, in narrower tiles where two accumulators share the registers.
fn schedule(kernel: &Kernel) -> Schedule {
    let gemm = |op: &flux_ir::kernel::OpEntry| matches!(op.op, flux_ir::kernel::Op::Gemm { .. });
    let default = Schedule::sm_90a();
    match kernel.ops.values().filter(|op| gemm(op)).count() {
        0 | 1 => default,
        _ => default.tile(128, 128, 64),
    }
}

/// The text without the expectations behind its lines.
fn without_expectations(text: &str) -> Vec<&str> {
    text.lines().map(|line| line.split("; error[").next().unwrap_or(line).trim_end()).collect()
}

/// The text with each diagnostic behind the line it points at.
fn with_expectations(lines: &[&str], found: &[Diagnostic]) -> String {
    let mut shown = String::new();
    let place = |diagnostic: &Diagnostic| {
        let mark = format!("@{}", diagnostic.span);
        let known = diagnostic.span.is_known();
        if diagnostic.rule == Rule::Syntax {
            // The position is one of this text, not of a user's source.
            return diagnostic.span.line as usize - 1;
        }
        let at = lines.iter().position(|line| known && line.ends_with(&mark));
        let first = lines.iter().position(|line| !line.starts_with(';'));
        at.or(first).unwrap_or(0)
    };
    for (index, line) in lines.iter().enumerate() {
        shown.push_str(line);
        for diagnostic in found.iter().filter(|diagnostic| place(diagnostic) == index) {
            shown.push_str(&format!(" ; error[{}]: {}", diagnostic.rule, diagnostic.message));
        }
        shown.push('\n');
    }
    shown
}

fn stem(file: &Path) -> String {
    file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

/// What is found in a file, and the file with it; one that ends in `_passes` has to pass.
fn judged(text: &str, file: &Path) -> (Diagnostics, String) {
    let lines = without_expectations(text);
    let found = verdict(&lines.join("\n")).err().unwrap_or_default();
    let passes = stem(file).ends_with("_passes");
    assert_eq!(found.is_empty(), passes, "{}: {found}", file.display());
    let shown = with_expectations(&lines, &found.0);
    (found, shown)
}

/// The rule's name in names of files.
fn file_name(rule: Rule) -> String {
    rule.name().replace('-', "_")
}

#[test]
fn broken_rules_are_found_where_they_are_broken() {
    each("verify", |text, file| {
        let (found, shown) = judged(text, file);
        let named = Rule::ALL.into_iter().find(|&rule| stem(file).starts_with(&file_name(rule)));
        let breaks = found.is_empty() || named.is_none_or(|rule| breaks(&found, rule.name()));
        assert!(breaks, "{} breaks another rule: {found}", file.display());
        Ok(shown)
    });
}

fn breaks(found: &Diagnostics, rule: &str) -> bool {
    found.0.iter().any(|diagnostic| diagnostic.rule.name() == rule)
}

/// What stands behind `; key: ` above a Program.
fn header<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix("; ")?.strip_prefix(key)?.strip_prefix(": "))
}

#[test]
fn faults_of_the_field_are_rejected_by_the_rule_they_deserve() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/faults.md");
    let docs = fs::read_to_string(docs).expect("docs/faults.md");
    each("faults", |text, file| {
        let (found, shown) = judged(text, file);
        let name = stem(file);
        if !found.is_empty() {
            let rule = header(text, "rule").unwrap_or_else(|| panic!("{name} names no rule"));
            assert!(breaks(&found, rule), "{name} deserves {rule}: {found}");
            let seen = header(text, "seen").unwrap_or_else(|| panic!("{name} was seen nowhere"));
            let base = header(text, "base").unwrap_or_else(|| panic!("{name} has no base"));
            assert!(!seen.is_empty() && base.ends_with("_passes"), "{name}: {seen}, {base}");
            assert!(file.with_file_name(format!("{base}.flux")).exists(), "{name}: no {base}");
            let row = docs.lines().find(|line| line.contains(&format!("| `{name}` |")));
            let row = row.unwrap_or_else(|| panic!("docs/faults.md lacks {name}"));
            assert!(row.contains(&format!("(rules.md#{rule})")), "{name}: {row}");
        }
        Ok(shown)
    });
}

/// What reading, lowering and checking say.
fn verdict(text: &str) -> Result<(), Diagnostics> {
    let is_kernel = text.lines().any(|line| line.starts_with("kernel "));
    let program = if is_kernel {
        let kernel: Kernel = text.parse()?;
        lower::lower(&kernel, &schedule(&kernel))?
    } else {
        text.parse()?
    };
    let verified = check::verify(program)?;
    let mut ranks = Vec::new();
    for line in text.lines() {
        let Some(asked) = line.strip_prefix("; launch ") else { continue };
        let asked = Asked::read(asked);
        match asked.rank {
            Some(rank) => {
                assert_eq!(rank as usize, ranks.len(), "launches by rank");
                ranks.push(asked.launch);
            }
            None => verified.check_launch(asked.launch)?,
        }
        if let Some(resident) = asked.resident {
            check::check_residency(verified.program(), asked.launch.ctas, resident)?;
        }
    }
    check::check_agreement(verified.program(), &ranks)
}

/// A launch that a file asks for.
struct Asked {
    launch: Launch,
    rank: Option<u32>,
    resident: Option<u32>,
}

impl Asked {
    /// Reads `m 16 n 16 …`.
    fn read(text: &str) -> Self {
        let mut words = text.split_whitespace();
        let shape = Shape { m: 16, n: 16, k: 8 };
        let launch = Launch { shape, world: 2, ctas: 1 };
        let mut asked = Asked { launch, rank: None, resident: None };
        while let Some(word) = words.next() {
            let number = words.next().and_then(|number| number.parse().ok());
            let number = number.unwrap_or_else(|| panic!("no number behind `{word}` in `{text}`"));
            match word {
                "m" => asked.launch.shape.m = number,
                "n" => asked.launch.shape.n = number,
                "k" => asked.launch.shape.k = number,
                "world" => asked.launch.world = number,
                "ctas" => asked.launch.ctas = number,
                "rank" => asked.rank = Some(number),
                "resident" => asked.resident = Some(number),
                _ => panic!("`{word}` in `{text}`"),
            }
        }
        asked
    }
}

#[test]
fn every_rule_of_the_checker_has_a_file_that_breaks_it_and_one_that_just_passes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests/verify");
    for rule in Rule::ALL {
        // Said by the macro, which alone sees the user's tokens.
        if rule == Rule::Language {
            continue;
        }
        let stem = file_name(rule);
        for name in [format!("{stem}.flux"), format!("{stem}_passes.flux")] {
            assert!(folder.join(&name).exists(), "{name} is missing");
        }
        let text = fs::read_to_string(folder.join(format!("{stem}.flux"))).expect("it exists");
        assert!(text.contains(&format!("; error[{rule}]")), "{stem}.flux does not break {rule}");
    }
}

#[test]
fn every_rule_has_a_paragraph() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/rules.md");
    let docs = fs::read_to_string(docs).expect("docs/rules.md");
    for rule in Rule::ALL {
        assert!(docs.contains(&format!("\n## {rule}\n")), "docs/rules.md lacks {rule}");
    }
}
