//! What is said to a user whose kernel breaks a rule.

use crate::span::Span;
use std::fmt;

/// The rules a kernel, a schedule or a Program can break. The name is the anchor in `docs/rules.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Rule {
    /// The text form does not parse.
    Syntax,
    /// A name, type or operand is not what the operation takes.
    Types,
    /// The dimensions of the parameters do not fit together.
    Dimensions,
    /// Something outside the language was used.
    Language,
    /// The schedule cannot be built on its target.
    Schedule,
    /// Shared memory, registers, alignment or box limits of the target are exceeded.
    Resources,
    /// Agents wait for each other, or for a signal that never comes.
    Deadlock,
    /// A wait needs more than is ever signalled.
    WaitWithoutSignal,
    /// A signal can shrink, or be set by two actors whose order is open.
    SignalNotMonotone,
    /// A tile order is no permutation of the tiles.
    OrderNotPermutation,
    /// An output element is written twice.
    WrittenTwice,
    /// An output element is never written.
    NeverWritten,
    /// A Program names what it does not declare, or leaves the bounds of a buffer.
    Bounds,
    /// A wait can end before all raises it stands for have happened.
    CountNotExact,
    /// A counter or an epoch means something else after 32 bits have wrapped.
    CounterWrap,
    /// Data is put to a peer that is never told.
    PutNotSignalled,
    /// A signal is raised before the put it stands for is performed.
    PutNotPerformed,
    /// Memory of a rank of another node is accessed as if it were mapped, or that of the own node over the network.
    NotMapped,
    /// A signal over the network does not travel behind the put it stands for.
    PutNotDelivered,
    /// A signal or a wait does not reach who is at the other end.
    ScopeTooNarrow,
    /// A bulk load has no proxy fence between it and the wait for what it loads.
    MissingProxyFence,
    /// Data is read that may not have been written yet.
    ReadBeforeArrival,
    /// Data is overwritten that may not have been read yet.
    OverwriteBeforeRead,
    /// Two writes of one element have no order.
    UnorderedWrites,
    /// A sum over ranks does not take each rank's contribution once.
    SumNotExact,
    /// Data that carry their own flag are not stored once and read once in a launch.
    FlagNotExact,
    /// Waits derive from another tile order than the tile at hand.
    OrderDiffers,
    /// A launch ends while a peer may still read its tensors.
    ExitBeforeRead,
    /// CTAs that wait for each other do not fit the device at once.
    Residency,
    /// Ranks launch with different parameters.
    LaunchDiffers,
}

impl Rule {
    /// Every rule, in the order of `docs/rules.md`.
    pub const ALL: [Rule; 30] = [
        Rule::Syntax,
        Rule::Types,
        Rule::Dimensions,
        Rule::Language,
        Rule::Schedule,
        Rule::Resources,
        Rule::Bounds,
        Rule::OrderNotPermutation,
        Rule::WrittenTwice,
        Rule::NeverWritten,
        Rule::SignalNotMonotone,
        Rule::WaitWithoutSignal,
        Rule::Deadlock,
        Rule::CountNotExact,
        Rule::ScopeTooNarrow,
        Rule::MissingProxyFence,
        Rule::ReadBeforeArrival,
        Rule::PutNotPerformed,
        Rule::PutNotSignalled,
        Rule::NotMapped,
        Rule::PutNotDelivered,
        Rule::OverwriteBeforeRead,
        Rule::UnorderedWrites,
        Rule::SumNotExact,
        Rule::FlagNotExact,
        Rule::OrderDiffers,
        Rule::ExitBeforeRead,
        Rule::CounterWrap,
        Rule::Residency,
        Rule::LaunchDiffers,
    ];

    /// The kebab-case name.
    pub const fn name(self) -> &'static str {
        match self {
            Rule::Syntax => "syntax",
            Rule::Types => "types",
            Rule::Dimensions => "dimensions",
            Rule::Language => "language",
            Rule::Schedule => "schedule",
            Rule::Resources => "resources",
            Rule::Deadlock => "deadlock",
            Rule::WaitWithoutSignal => "wait-without-signal",
            Rule::SignalNotMonotone => "signal-not-monotone",
            Rule::OrderNotPermutation => "order-not-permutation",
            Rule::WrittenTwice => "written-twice",
            Rule::NeverWritten => "never-written",
            Rule::Bounds => "bounds",
            Rule::CountNotExact => "count-not-exact",
            Rule::CounterWrap => "counter-wrap",
            Rule::PutNotSignalled => "put-not-signalled",
            Rule::PutNotPerformed => "put-not-performed",
            Rule::NotMapped => "not-mapped",
            Rule::PutNotDelivered => "put-not-delivered",
            Rule::ScopeTooNarrow => "scope-too-narrow",
            Rule::MissingProxyFence => "missing-proxy-fence",
            Rule::ReadBeforeArrival => "read-before-arrival",
            Rule::OverwriteBeforeRead => "overwrite-before-read",
            Rule::UnorderedWrites => "unordered-writes",
            Rule::SumNotExact => "sum-not-exact",
            Rule::FlagNotExact => "flag-not-exact",
            Rule::OrderDiffers => "order-differs",
            Rule::ExitBeforeRead => "exit-before-read",
            Rule::Residency => "residency",
            Rule::LaunchDiffers => "launch-differs",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One broken rule: what was expected and found, where, and what to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// The broken rule.
    pub rule: Rule,
    /// One sentence in lower case: expected before found, with the values seen.
    pub message: String,
    /// The user's token.
    pub span: Span,
    /// Further facts, each with the place it speaks of.
    pub notes: Vec<(Span, String)>,
    /// What to write instead.
    pub help: Option<String>,
}

impl Diagnostic {
    /// A diagnostic without notes.
    pub fn new(rule: Rule, span: Span, message: impl Into<String>) -> Self {
        Diagnostic { rule, message: message.into(), span, notes: Vec::new(), help: None }
    }

    /// Adds a fact about another place.
    #[must_use]
    pub fn note(mut self, span: Span, text: impl Into<String>) -> Self {
        self.notes.push((span, text.into()));
        self
    }

    /// Sets what to write instead.
    #[must_use]
    pub fn help(mut self, text: impl Into<String>) -> Self {
        self.help = Some(text.into());
        self
    }
}

impl Diagnostic {
    /// The diagnostic as text; positions are of `file`, where one is given.
    fn write(&self, f: &mut fmt::Formatter<'_>, file: Option<&str>) -> fmt::Result {
        let file = file.map(|file| format!("{file}:")).unwrap_or_default();
        write!(f, "error[{}]: {}", self.rule, self.message)?;
        if self.span.is_known() {
            write!(f, "\n  --> {file}{}", self.span)?;
        }
        for (span, note) in &self.notes {
            write!(f, "\n  = note: {note}")?;
            if span.is_known() {
                write!(f, " (at {file}{span})")?;
            }
        }
        if let Some(help) = &self.help {
            write!(f, "\n  = help: {help}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, None)
    }
}

/// Every rule found broken; never empty where it is returned as an error.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl Diagnostics {
    /// Nothing found yet.
    pub fn new() -> Self {
        Diagnostics::default()
    }

    /// Adds one.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        self.0.push(diagnostic);
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `Ok(value)` where nothing was found, else what was.
    ///
    /// # Errors
    /// The collected diagnostics.
    pub fn into_result<T>(self, value: T) -> Result<T, Diagnostics> {
        if self.0.is_empty() { Ok(value) } else { Err(self) }
    }
}

impl From<Diagnostic> for Diagnostics {
    fn from(diagnostic: Diagnostic) -> Self {
        Diagnostics(vec![diagnostic])
    }
}

impl Diagnostics {
    /// The diagnostics with positions in `file`, to be displayed.
    pub fn in_file<'a>(&'a self, file: &'a str) -> impl fmt::Display + 'a {
        fmt::from_fn(move |f| self.write(f, Some(file)))
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, file: Option<&str>) -> fmt::Result {
        for (index, diagnostic) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            diagnostic.write(f, file)?;
        }
        Ok(())
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, None)
    }
}

impl std::error::Error for Diagnostics {}
