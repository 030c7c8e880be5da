//! Bad input: whatever bytes are read and whatever Program is checked on whatever launch, there is
//! a verdict, never a panic, never a run without end.
//!
//! Cases are the same in every run. `FLUX_FUZZ=10` runs ten times as many, `FLUX_FUZZ_SEED=7` others.
//!
//! | test | cases |
//! |---|---|
//! | bytes, read as Kernel and as Program | 2 × 4096 |
//! | tokens of the grammar in any order | 2 × 4096 |
//! | file tests, tokens deleted, doubled, swapped or replaced | 8192 |
//! | sound files, one or two lines or tokens edited, checked on the family and two launches | 4096 |
//! | Programs without sense, checked | 512 |
//! | sound files, checked on any launch | 2048 |

#[path = "text/generate.rs"]
mod generate;

use flux_ir::eval::Launch;
use flux_ir::{Diagnostics, Kernel, Program, Rule, Shape, check};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{RngSeed, TestRunner};
use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// A case may take so long where the machine is busy; nearly all take milliseconds. The largest
/// launches that the checker admits take a minute or so on one that is not.
fn limit() -> Duration {
    Duration::from_secs(if number("FLUX_FUZZ", 1) > 1 { 600 } else { 60 })
}

/// What all cases together may hold in memory: the checker's own bound for each of two threads
/// that check at a time, and the rest.
const MEMORY_LIMIT: u64 = 3 << 30;

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(value) => value.parse().unwrap_or_else(|e| panic!("{variable}={value}: {e}")),
        Err(_) => default,
    }
}

/// Runs `case` on so many values, the same ones in every run.
fn fuzz<S: Strategy>(
    cases: u32,
    strategy: S,
    case: impl Fn(S::Value) -> Result<(), TestCaseError>,
) {
    let config = ProptestConfig {
        cases: cases * number("FLUX_FUZZ", 1) as u32,
        rng_seed: RngSeed::Fixed(number("FLUX_FUZZ_SEED", 0)),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let outcome = TestRunner::new(config).run(&strategy, case);
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}

/// The names and texts of all file tests, without comments.
static FILES: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests");
    let mut paths = Vec::new();
    for folder in fs::read_dir(&root).expect("the folder of file tests") {
        let folder = folder.expect("a readable folder").path();
        let files = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        paths.extend(files.map(|file| file.expect("a readable folder").path()));
    }
    paths.sort();
    let file = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        (path.display().to_string(), without_comments(&text))
    };
    paths.iter().map(file).collect()
});

fn without_comments(text: &str) -> String {
    let lines = text.lines().map(|line| line.split(';').next().unwrap_or_default().trim_end());
    lines.filter(|line| !line.is_empty()).map(|line| format!("{line}\n")).collect()
}

/// The files that are one sound Program each.
static SOUND: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let is_program = |text: &&str| text.starts_with("program ");
    let passes = |name: &str| name.ends_with("_passes.flux") || name.contains("/program/");
    let files = FILES.iter().filter(|(name, _)| passes(name));
    files.map(|(_, text)| text.as_str()).filter(is_program).collect()
});

/// Words, names, numbers, marks and what is between them; a position `@7:17` is one token.
fn tokens(text: &str) -> Vec<&str> {
    #[derive(PartialEq)]
    enum Kind {
        Word,
        Space,
        Mark,
    }
    let kind = |c: char| match c {
        _ if c.is_alphanumeric() || c == '_' || c == '%' || c == '@' => Kind::Word,
        _ if c.is_whitespace() => Kind::Space,
        _ => Kind::Mark,
    };
    let mut tokens = Vec::new();
    let mut start = 0;
    let mut last = Kind::Space;
    for (at, c) in text.char_indices() {
        let kind = kind(c);
        let position = c == ':' && text[start..at].starts_with('@');
        let goes_on = position || (kind == last && (kind != Kind::Mark || ".=-<>".contains(c)));
        if !goes_on && at > start {
            tokens.push(&text[start..at]);
            start = at;
        }
        if !position {
            last = kind;
        }
    }
    tokens.push(&text[start..]);
    tokens
}

/// What numbers are replaced by.
const NUMBERS: [&str; 14] = [
    "0",
    "1",
    "2",
    "3",
    "7",
    "64",
    "65",
    "65537",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "99999999999999999999",
];

/// What else tokens are replaced by.
const WORDS: [&str; 48] = [
    "M",
    "N",
    "K",
    "world",
    "rank",
    "epoch",
    "cta",
    "ctas",
    "sys",
    "gpu",
    "read",
    "performed",
    "+",
    "-",
    "*",
    "/",
    " % ",
    "..",
    "=",
    "+=",
    ">=",
    "<",
    "==",
    "!=",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "^",
    "min(",
    "ceil(",
    "peer(rank).",
    "symmetric",
    "exposed",
    "in",
    "out",
    "device",
    "host",
    "%e0",
    "%m",
    "for",
    "if",
    "copy_engine",
    "exit",
    "\"",
    "-1",
];

/// One edit of a list of pieces: where, where else, and how.
type Edit = (Index, Index, u8);

fn edits(most: usize) -> impl Strategy<Value = Vec<Edit>> {
    prop::collection::vec(any::<Edit>(), 1..=most)
}

fn with_edited_tokens(text: &str, edits: &[Edit]) -> String {
    let mut tokens = tokens(text);
    for (at, other, how) in edits {
        let (at, to) = (at.index(tokens.len()), other.index(tokens.len()));
        match how % 8 {
            0 => tokens[at] = "",
            1 => tokens.insert(at, tokens[at]),
            2 => tokens.swap(at, to),
            3 => tokens[at] = tokens[to],
            4 => tokens[at] = WORDS[other.index(WORDS.len())],
            _ => {
                let is_number = |token: &&str| token.starts_with(|c: char| c.is_ascii_digit());
                let from_here = (at..tokens.len()).chain(0..at);
                let mut numbers = from_here.filter(|&i| is_number(&tokens[i]));
                let number = numbers.next();
                number.into_iter().for_each(|i| tokens[i] = NUMBERS[other.index(NUMBERS.len())]);
            }
        }
    }
    tokens.concat()
}

/// What one token may be replaced by so that the text is still read, mostly.
const ALIKE: [&[&str]; 7] = [
    &["M", "N", "K", "world", "rank", "epoch", "cta", "ctas"],
    &["gpu", "sys", "cta"],
    &["read", "performed"],
    &["+", "-", "*", "/"],
    &["=", "+="],
    &["==", "!=", "<"],
    &["in", "out", "symmetric", "exposed"],
];

fn with_tokens_alike(text: &str, edits: &[Edit]) -> String {
    let mut tokens = tokens(text);
    for (at, other, _) in edits {
        let from_here = (at.index(tokens.len())..tokens.len()).chain(0..at.index(tokens.len()));
        let names: Vec<_> = tokens.iter().copied().filter(|token| token.starts_with('%')).collect();
        let replaced = from_here.into_iter().find_map(|i| {
            let token = tokens[i];
            let alike = match token.chars().next() {
                Some('%') if token.len() > 1 => &names,
                Some('0'..='9') => &NUMBERS[..],
                _ => ALIKE.into_iter().find(|alike| alike.contains(&token))?,
            };
            Some((i, alike[other.index(alike.len())]))
        });
        replaced.into_iter().for_each(|(i, token)| tokens[i] = token);
    }
    tokens.concat()
}

/// Lines that open or close a block stay where they are.
fn with_edited_lines(text: &str, edits: &[Edit]) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    for (at, other, how) in edits {
        let opens = |line: &str| line.contains("{ @") || line.ends_with('{');
        let movable = |&i: &usize| !opens(lines[i]) && !lines[i].trim_start().starts_with('}');
        let movable: Vec<_> = (0..lines.len()).filter(movable).collect();
        let (at, to) = (*at.get(&movable), *other.get(&movable));
        match how % 4 {
            0 => lines[at] = "",
            1 => lines.insert(at, lines[at]),
            2 => lines.insert(to, lines[at]),
            _ => lines.swap(at, to),
        }
    }
    lines.join("\n")
}

/// An error names a position of the text; what is read prints as text that is read as the same.
fn read_or_refused(text: &str) -> Result<bool, TestCaseError> {
    let kernel = text.parse::<Kernel>();
    let program = text.parse::<Program>();
    let read = kernel.is_ok() || program.is_ok();
    if let Ok(kernel) = &kernel {
        let shown = kernel.to_string();
        prop_assert_eq!(shown.parse::<Kernel>().map(|kernel| kernel.to_string()), Ok(shown));
    }
    if let Ok(program) = &program {
        let shown = program.to_string();
        prop_assert_eq!(shown.parse::<Program>().map(|program| program.to_string()), Ok(shown));
    }
    for errors in [kernel.err(), program.err()].into_iter().flatten() {
        prop_assert!(!errors.is_empty());
        for error in errors.0 {
            prop_assert_eq!(error.rule, Rule::Syntax);
            let (line, column) = (error.span.line as usize, error.span.column as usize);
            // The end of the text is one behind its last line and column.
            prop_assert!((1..=text.lines().count() + 1).contains(&line), "{}", error);
            let longest = text.lines().map(|line| line.chars().count()).max().unwrap_or_default();
            prop_assert!((1..=longest + 1).contains(&column), "{}", error);
        }
    }
    Ok(read)
}

#[test]
fn bytes_are_read_or_refused() {
    fuzz(4096, prop::collection::vec(any::<u8>(), 0..300), |bytes| {
        read_or_refused(&String::from_utf8_lossy(&bytes)).map(drop)
    });
    let head = "program @f for host { tile (8, 8, 8) stages 4 consumers cooperative ";
    fuzz(4096, "[ -~\n]{0,200}", |text| read_or_refused(&format!("{head}{text}")).map(drop));
}

#[test]
fn tokens_in_any_order_are_read_or_refused() {
    let vocabulary: Vec<&str> = FILES.iter().flat_map(|(_, text)| tokens(text)).collect();
    let head = "program @f for host { tile (8, 8, 8) stages 4 consumers cooperative ";
    let soup = prop::collection::vec(select(vocabulary), 0..120);
    fuzz(8192, (soup, any::<bool>()), |(soup, with_head)| {
        let soup = soup.join(" ");
        read_or_refused(&if with_head { format!("{head}{soup}") } else { soup }).map(drop)
    });
}

#[test]
fn edited_files_are_read_or_refused() {
    let read = Cell::new(0);
    fuzz(8192, (select(FILES.as_slice()), edits(4)), |((_, text), edits)| {
        let is_read = read_or_refused(&with_edited_tokens(&text, &edits))?;
        read.set(read.get() + u32::from(is_read));
        Ok(())
    });
    assert!(read.get() > 1000, "edits leave next to nothing that is read: {read:?}");
}

/// Few of everything, and with it what no launch can have. Runs of more cases than usual also have
/// launches that the checker just admits.
fn launch() -> impl Strategy<Value = Launch> {
    let mut extents = vec![0, 1 << 31, u32::MAX - 1, u32::MAX];
    let mut grids = vec![0, 132, 512, (1 << 16) + 1, u32::MAX];
    if number("FLUX_FUZZ", 1) > 1 {
        extents.extend([1 << 30, i32::MAX as u32]);
        grids.extend([1 << 12, 1 << 16]);
    }
    let extent = || prop_oneof![8 => 0u32..40, 1 => select(extents.clone())];
    let world = prop_oneof![8 => 1u32..9, 1 => select(vec![0, 63, 64, 65, 1 << 31, u32::MAX])];
    let ctas = prop_oneof![8 => 1u32..6, 1 => select(grids)];
    ([extent(), extent(), extent()], world, ctas).prop_map(|([m, n, k], world, ctas)| Launch {
        shape: Shape { m, n, k },
        world,
        ctas,
    })
}

/// What is said of a launch that breaks a rule is never nothing.
fn said(outcome: Result<(), Diagnostics>) -> Result<(), TestCaseError> {
    outcome.or_else(|found| {
        prop_assert!(!found.is_empty());
        Ok(())
    })
}

/// Checks the launches, whether the Program passes or not, and the Program. Says whether it passes.
fn checked(program: Program, launches: &[Launch]) -> Result<bool, TestCaseError> {
    let started = Instant::now();
    let each = launches.iter().map(|&launch| check::check_program(&program, launch));
    let outcomes: Vec<_> = each.collect();
    let verified = check::verify(program);
    if let Ok(verified) = &verified {
        for (&launch, outcome) in launches.iter().zip(&outcomes) {
            prop_assert_eq!(&verified.check_launch(launch), outcome, "{:?}", launch);
        }
    }
    let passes = verified.is_ok();
    outcomes.into_iter().try_for_each(said)?;
    said(verified.map(drop))?;
    prop_assert!(started.elapsed() < limit(), "took {:?}", started.elapsed());
    Ok(passes)
}

/// The most memory this process has held, where the system tells.
fn peak_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kilobytes * 1024)
}

fn memory_is_bounded() {
    let peak = peak_memory().unwrap_or_default();
    assert!(peak < MEMORY_LIMIT, "held {peak} bytes, expected less than {MEMORY_LIMIT}");
}

#[test]
fn edited_programs_get_a_verdict() {
    let (read, passed) = (Cell::new(0), Cell::new(0));
    let text = (select(SOUND.as_slice()), edits(2), any::<bool>());
    fuzz(4096, (text, prop::collection::vec(launch(), 2)), |((text, edits, lines), launches)| {
        let edit = if lines { with_edited_lines } else { with_tokens_alike };
        let text = edit(text, &edits);
        let Ok(program) = text.parse::<Program>() else { return Ok(()) };
        read.set(read.get() + 1);
        passed.set(passed.get() + u32::from(checked(program, &launches)?));
        Ok(())
    });
    assert!(read.get() > 1000, "edits leave next to nothing that is read: {read:?}");
    assert!(passed.get() > 50, "edits leave next to nothing that passes: {passed:?}");
    memory_is_bounded();
}

#[test]
fn programs_without_sense_get_a_verdict() {
    fuzz(512, (generate::program(), launch()), |(program, launch)| {
        checked(program, &[launch]).map(drop)
    });
    fuzz(128, generate::kernel(), |kernel| read_or_refused(&kernel.to_string()).map(drop));
    memory_is_bounded();
}

#[test]
fn sound_programs_get_a_verdict_on_any_launch() {
    let sound = SOUND.iter().filter_map(|text| check::verify(text.parse().ok()?).ok());
    let sound: Vec<_> = sound.collect();
    assert!(sound.len() > 10, "few files are sound: {}", sound.len());
    let passed = Cell::new(0);
    fuzz(2048, (0..sound.len(), launch()), |(which, launch)| {
        let started = Instant::now();
        let outcome = sound[which].check_launch(launch);
        passed.set(passed.get() + u32::from(outcome.is_ok()));
        said(outcome)?;
        prop_assert!(started.elapsed() < limit(), "took {:?}", started.elapsed());
        Ok(())
    });
    assert!(passed.get() > 500, "next to no launch passes: {passed:?}");
    memory_is_bounded();
}
