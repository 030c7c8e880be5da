//! A position in a sequence of tokens, and what both grammars share.

use super::lex::{Token, tokens};
use crate::diagnostic::{Diagnostic, Rule};
use crate::element::Element;
use crate::kernel::{Binary, Unary};
use crate::order::{Arrival, CustomOrder, Departure, Order};
use crate::span::Span;

/// What a parse function returns: the first syntax error ends the parse.
pub(super) type Parsed<T> = Result<T, Diagnostic>;

/// How deep bodies and expressions may nest: far above any kernel, far below what the stack of
/// a thread can hold.
pub(super) const DEPTH: u32 = 100;

/// Tokens being read.
pub(super) struct Cursor {
    tokens: Vec<(Token, Span)>,
    next: usize,
    depth: u32,
}

impl Cursor {
    pub(super) fn new(text: &str) -> Parsed<Self> {
        Ok(Cursor { tokens: tokens(text)?, next: 0, depth: 0 })
    }

    pub(super) fn peek(&self) -> &Token {
        &self.tokens[self.next].0
    }

    /// Where the next token stands in the text.
    pub(super) fn position(&self) -> Span {
        self.tokens[self.next].1
    }

    /// The next token; [`Token::End`] is never left.
    pub(super) fn bump(&mut self) -> Token {
        let token = self.tokens[self.next].0.clone();
        if token != Token::End {
            self.next += 1;
        }
        token
    }

    /// That something else was expected at the next token.
    pub(super) fn unexpected<T>(&self, expected: &str) -> Parsed<T> {
        let found = match self.peek() {
            Token::Word(word) => format!("`{word}`"),
            Token::Quoted(text) => format!("{text:?}"),
            Token::Name(name) => format!("`%{name}`"),
            Token::Value(value) => format!("`%{value}`"),
            Token::Global(name) => format!("`@{name}`"),
            Token::Span(span) => format!("`@{span}`"),
            Token::Number(digits, _) => format!("`{digits}`"),
            Token::Punct(punct) => format!("`{punct}`"),
            Token::End => "the end".into(),
        };
        self.error(format!("expected {expected}, found {found}"))
    }

    /// An error at the next token.
    pub(super) fn error<T>(&self, message: impl Into<String>) -> Parsed<T> {
        Err(Diagnostic::new(Rule::Syntax, self.position(), message))
    }

    /// An error at `position`.
    pub(super) fn error_at<T>(position: Span, message: impl Into<String>) -> Parsed<T> {
        Err(Diagnostic::new(Rule::Syntax, position, message))
    }

    /// Enters a level of nesting.
    pub(super) fn deeper(&mut self) -> Parsed<()> {
        if self.depth >= DEPTH {
            return self.error(format!("expected at most {DEPTH} levels, found more"));
        }
        self.depth += 1;
        Ok(())
    }

    /// Leaves a level of nesting.
    pub(super) fn shallower(&mut self) {
        self.depth -= 1;
    }

    pub(super) fn at(&self, punct: &str) -> bool {
        matches!(self.peek(), Token::Punct(found) if *found == punct)
    }

    pub(super) fn take(&mut self, punct: &str) -> bool {
        let found = self.at(punct);
        self.next += usize::from(found);
        found
    }

    pub(super) fn punct(&mut self, punct: &str) -> Parsed<()> {
        if self.take(punct) { Ok(()) } else { self.unexpected(&format!("`{punct}`")) }
    }

    pub(super) fn take_word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Token::Word(found) if found == word);
        self.next += usize::from(found);
        found
    }

    pub(super) fn word(&mut self, word: &str) -> Parsed<()> {
        if self.take_word(word) { Ok(()) } else { self.unexpected(&format!("`{word}`")) }
    }

    /// One of a closed set of words.
    pub(super) fn choice<T: Copy>(
        &mut self,
        what: &str,
        all: &[T],
        name: impl Fn(T) -> &'static str,
    ) -> Parsed<T> {
        if let Token::Word(word) = self.peek()
            && let Some(found) = all.iter().copied().find(|&entry| name(entry) == word)
        {
            self.next += 1;
            return Ok(found);
        }
        let names: Vec<_> = all.iter().map(|&entry| name(entry)).collect();
        self.unexpected(&format!("{what} ({})", names.join(", ")))
    }

    pub(super) fn element(&mut self) -> Parsed<Element> {
        self.choice("an element type", &Element::ALL, Element::name)
    }

    /// A bare word or a quoted name.
    pub(super) fn plain_name(&mut self, what: &str) -> Parsed<String> {
        match self.bump() {
            Token::Word(name) | Token::Quoted(name) => Ok(name),
            token => {
                self.next -= usize::from(token != Token::End);
                self.unexpected(what)
            }
        }
    }

    /// `%name`.
    pub(super) fn name(&mut self, what: &str) -> Parsed<String> {
        let Token::Name(name) = self.peek() else { return self.unexpected(what) };
        let name = name.clone();
        self.next += 1;
        Ok(name)
    }

    /// `@name`.
    pub(super) fn global(&mut self) -> Parsed<String> {
        let Token::Global(name) = self.peek() else { return self.unexpected("a name `@name`") };
        let name = name.clone();
        self.next += 1;
        Ok(name)
    }

    pub(super) fn u32(&mut self) -> Parsed<u32> {
        if let Token::Number(digits, false) = self.peek() {
            let Ok(value) = digits.parse() else {
                return self.unexpected("an integer below 2^32");
            };
            self.next += 1;
            return Ok(value);
        }
        self.unexpected("an integer")
    }

    /// A number with an optional sign.
    pub(super) fn i64(&mut self) -> Parsed<i64> {
        let sign = if self.take("-") { "-" } else { "" };
        if let Token::Number(digits, false) = self.peek() {
            let Ok(value) = format!("{sign}{digits}").parse() else {
                return self.unexpected("an integer of 64 bits");
            };
            self.next += 1;
            return Ok(value);
        }
        self.unexpected("an integer")
    }

    /// A number, `inf`, `nan` or `nan(bits)`, with an optional sign.
    pub(super) fn float(&mut self) -> Parsed<f32> {
        let sign = if self.take("-") { -1.0f32 } else { 1.0 };
        if self.take_word("inf") {
            return Ok(f32::INFINITY.copysign(sign));
        }
        if self.take_word("nan") {
            let mut value = f32::NAN;
            if self.take("(") {
                value = f32::from_bits(self.u32()?);
                self.punct(")")?;
                if !value.is_nan() {
                    return self.error("these bits are no NaN");
                }
            }
            return Ok(value);
        }
        if let Token::Number(digits, _) = self.peek() {
            match digits.parse::<f32>() {
                Ok(value) if value.is_finite() => {
                    self.next += 1;
                    return Ok(value.copysign(sign));
                }
                Ok(_) | Err(_) => return self.unexpected("a number in the range of f32"),
            }
        }
        self.unexpected("a number")
    }

    /// `@line:column`, if there is one.
    pub(super) fn span(&mut self) -> Span {
        let Token::Span(span) = self.peek() else { return Span::UNKNOWN };
        let span = *span;
        self.next += 1;
        span
    }

    /// Numbers in parentheses.
    pub(super) fn numbers<const N: usize>(&mut self) -> Parsed<[u32; N]> {
        let mut numbers = [0; N];
        self.punct("(")?;
        for (index, number) in numbers.iter_mut().enumerate() {
            if index > 0 {
                self.punct(",")?;
            }
            *number = self.u32()?;
        }
        self.punct(")")?;
        Ok(numbers)
    }

    /// A tile order, with its numbers.
    pub(super) fn order(&mut self) -> Parsed<Order> {
        let position = self.position();
        let word = self.plain_name("a tile order")?;
        match word.as_str() {
            "grouped" => return Ok(Order::Grouped(self.numbers::<1>()?[0])),
            "arrival" => {
                let [chunk, tail, pace] = self.numbers()?;
                return Ok(Order::Arrival(Arrival { chunk, tail, pace }));
            }
            "departure" => {
                let [rows, shards] = self.numbers()?;
                return Ok(Order::Departure(Departure { rows, shards }));
            }
            _ => {}
        }
        if word == "custom" {
            self.punct("(")?;
            let name = self.plain_name("the order's name")?;
            self.punct(")")?;
            return Ok(Order::Custom(CustomOrder { name, function: None }));
        }
        match Order::built_in(&word) {
            Some(order) => Ok(order),
            None => Cursor::error_at(position, format!("there is no tile order `{word}`")),
        }
    }

    /// A list in which `parse` reads one entry.
    pub(super) fn list<T>(
        &mut self,
        mut parse: impl FnMut(&mut Self) -> Parsed<T>,
    ) -> Parsed<Vec<T>> {
        let mut entries = vec![parse(self)?];
        while self.take(",") {
            entries.push(parse(self)?);
        }
        Ok(entries)
    }

    /// Nothing may follow.
    pub(super) fn end(&self) -> Parsed<()> {
        if *self.peek() == Token::End { Ok(()) } else { self.unexpected("the end") }
    }
}

/// The unary function called `word`.
pub(super) fn unary(word: &str) -> Option<Unary> {
    Unary::ALL.into_iter().find(|op| op.name() == word)
}

/// The binary function called `word`.
pub(super) fn binary(word: &str) -> Option<Binary> {
    Binary::ALL.into_iter().find(|op| op.name() == word)
}
