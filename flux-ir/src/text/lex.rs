//! Tokens of the text form.

use crate::diagnostic::{Diagnostic, Rule};
use crate::span::Span;

/// A token. Names come without sigil and quotes.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    /// A bare word.
    Word(String),
    /// Text in double quotes.
    Quoted(String),
    /// `%name`.
    Name(String),
    /// `%7`.
    Value(u32),
    /// `@name`.
    Global(String),
    /// `@12:5`.
    Span(Span),
    /// A number without sign: its digits, and whether it has a fraction or an exponent.
    Number(String, bool),
    /// An operator or a bracket.
    Punct(&'static str),
    /// The end of the text.
    End,
}

/// Operators and brackets; a longer one stands before its prefixes.
const PUNCTS: [&str; 26] = [
    "..", "==", "!=", "+=", ">=", "<-", "->", "(", ")", "{", "}", "[", "]", "<", ">", ",", ":",
    ".", "*", "+", "-", "/", "%", "=", "^", "&",
];

/// All tokens of `text` with their positions in it; the last one is [`Token::End`].
pub(super) fn tokens(text: &str) -> Result<Vec<(Token, Span)>, Diagnostic> {
    let mut lexer = Lexer { rest: text, at: Span::new(1, 1) };
    let mut tokens = Vec::new();
    loop {
        lexer.skip_blank();
        let at = lexer.at;
        let token = lexer.token()?;
        let end = token == Token::End;
        tokens.push((token, at));
        if end {
            return Ok(tokens);
        }
    }
}

/// Whether `text` can stand without quotes.
pub(super) fn is_bare(text: &str) -> bool {
    text.chars().next().is_some_and(begins_word) && text.chars().all(continues_word)
}

fn begins_word(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}

fn continues_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

struct Lexer<'t> {
    rest: &'t str,
    at: Span,
}

impl<'t> Lexer<'t> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn bump(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.rest = &self.rest[c.len_utf8()..];
        self.at = match c {
            '\n' => Span::new(self.at.line + 1, 1),
            _ => Span::new(self.at.line, self.at.column + 1),
        };
        Some(c)
    }

    /// The longest prefix of characters that satisfy `holds`.
    fn take_while(&mut self, holds: impl Fn(char) -> bool) -> &'t str {
        let text = self.rest;
        while self.peek().is_some_and(&holds) {
            self.bump();
        }
        &text[..text.len() - self.rest.len()]
    }

    fn error<T>(&self, message: impl Into<String>) -> Result<T, Diagnostic> {
        Err(Diagnostic::new(Rule::Syntax, self.at, message))
    }

    fn skip_blank(&mut self) {
        loop {
            self.take_while(char::is_whitespace);
            if self.peek() != Some(';') {
                return;
            }
            self.take_while(|c| c != '\n');
        }
    }

    fn token(&mut self) -> Result<Token, Diagnostic> {
        let Some(c) = self.peek() else { return Ok(Token::End) };
        let second = self.rest[c.len_utf8()..].chars().next();
        match (c, second) {
            ('"', _) => Ok(Token::Quoted(self.quoted()?)),
            ('%', Some('"')) => {
                self.bump();
                Ok(Token::Name(self.quoted()?))
            }
            ('@', Some('"')) => {
                self.bump();
                Ok(Token::Global(self.quoted()?))
            }
            ('%', Some(next)) if begins_word(next) => {
                self.bump();
                Ok(Token::Name(self.take_while(continues_word).into()))
            }
            ('@', Some(next)) if begins_word(next) => {
                self.bump();
                Ok(Token::Global(self.take_while(continues_word).into()))
            }
            ('%', Some(next)) if next.is_ascii_digit() => {
                self.bump();
                Ok(Token::Value(self.integer()?))
            }
            ('@', Some(next)) if next.is_ascii_digit() => {
                self.bump();
                self.span()
            }
            _ if begins_word(c) => Ok(Token::Word(self.take_while(continues_word).into())),
            _ if c.is_ascii_digit() => self.number(),
            _ => match PUNCTS.iter().find(|punct| self.rest.starts_with(**punct)) {
                Some(punct) => {
                    punct.chars().for_each(|_| _ = self.bump());
                    Ok(Token::Punct(punct))
                }
                None => self.error(format!("unknown character `{}`", c.escape_default())),
            },
        }
    }

    fn quoted(&mut self) -> Result<String, Diagnostic> {
        self.bump();
        let mut text = String::new();
        loop {
            match self.bump() {
                Some('"') => return Ok(text),
                Some('\\') => match self.bump() {
                    Some('n') => text.push('\n'),
                    Some(c @ ('"' | '\\')) => text.push(c),
                    _ => return self.error("unknown escape in a quoted name"),
                },
                None | Some('\n') => return self.error("a quoted name has no end"),
                Some(c) => text.push(c),
            }
        }
    }

    fn integer(&mut self) -> Result<u32, Diagnostic> {
        let digits = self.take_while(|c| c.is_ascii_digit());
        match digits.parse() {
            Ok(value) => Ok(value),
            Err(_) => self.error(format!("`{digits}` does not fit in 32 bits")),
        }
    }

    fn span(&mut self) -> Result<Token, Diagnostic> {
        let line = self.integer()?;
        if line == 0 || self.peek() != Some(':') {
            return self.error("expected a position `@line:column` with lines counted from 1");
        }
        self.bump();
        Ok(Token::Span(Span::new(line, self.integer()?)))
    }

    fn number(&mut self) -> Result<Token, Diagnostic> {
        let text = self.rest;
        let digit_at =
            |rest: &str, index: usize| rest.as_bytes().get(index).is_some_and(u8::is_ascii_digit);
        let mut float = false;
        self.take_while(|c| c.is_ascii_digit());
        if self.peek() == Some('.') && digit_at(self.rest, 1) {
            float = true;
            self.bump();
            self.take_while(|c| c.is_ascii_digit());
        }
        let signed = matches!(self.rest.as_bytes().get(1), Some(b'+' | b'-'));
        if matches!(self.peek(), Some('e' | 'E')) && digit_at(self.rest, 1 + usize::from(signed)) {
            float = true;
            self.bump();
            if signed {
                self.bump();
            }
            self.take_while(|c| c.is_ascii_digit());
        }
        if self.peek().is_some_and(continues_word) {
            return self.error("a number runs into a word");
        }
        Ok(Token::Number(text[..text.len() - self.rest.len()].into(), float))
    }
}
