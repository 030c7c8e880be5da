//! Turns text into the token ids that a BERT model was trained on.
//!
//! Reads the `tokenizer.json` that lies beside the weights and does what it says for the one kind
//! that BERT uses: clean, strip accents, lowercase, split at spaces and punctuation, then take the
//! longest piece of each word that the vocabulary has. The `tokenizers` crate does this and much
//! more; it would be most of what an example compiles.

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;

use serde_json::Value;
use unicode_normalization::UnicodeNormalization;
use unicode_properties::{GeneralCategory, GeneralCategoryGroup, UnicodeGeneralCategory};

/// A vocabulary of word pieces, with what BERT does to a text before it looks them up.
#[derive(Debug)]
pub(crate) struct WordPiece {
    ids: HashMap<String, u32>,
    /// Found in the text as they stand, before anything is lowercased or split: `[MASK]`.
    special: Vec<String>,
    lowercase: bool,
    strip_accents: bool,
    split_chinese: bool,
    longest_word: usize,
    unknown: u32,
}

impl WordPiece {
    /// Reads `tokenizer.json`.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or it holds another kind of tokenizer than BERT's.
    pub(crate) fn open(path: &Path) -> Result<Self, Box<dyn Error>> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("cannot read the tokenizer {}: {error}", path.display()))?;
        Self::parse(&text).map_err(|error| format!("{}: {error}", path.display()).into())
    }

    /// Reads the text of a `tokenizer.json`.
    ///
    /// # Errors
    ///
    /// It holds another kind of tokenizer than BERT's.
    pub(crate) fn parse(json: &str) -> Result<Self, Box<dyn Error>> {
        let json: Value = serde_json::from_str(json)?;
        let (model, normalizer) = (&json["model"], &json["normalizer"]);
        // Older files leave the kind of the model out; only WordPiece has a continuing prefix.
        let kind = model["type"].as_str().unwrap_or("WordPiece");
        expect("model", kind, "WordPiece")?;
        expect("normalizer", kind_of(normalizer), "BertNormalizer")?;
        expect("pre-tokenizer", kind_of(&json["pre_tokenizer"]), "BertPreTokenizer")?;
        let prefix = model["continuing_subword_prefix"].as_str().unwrap_or("##");
        expect("prefix of continuing pieces", prefix, "##")?;

        let vocab = model["vocab"].as_object().ok_or("the tokenizer has no vocabulary")?;
        let ids = vocab
            .iter()
            .map(|(piece, id)| {
                let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
                Ok((piece.clone(), id.ok_or_else(|| format!("piece {piece} has no id"))?))
            })
            .collect::<Result<HashMap<_, _>, String>>()?;
        let special = json["added_tokens"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|token| Some(token["content"].as_str()?.to_string()))
            .collect();
        let lowercase = normalizer["lowercase"].as_bool().unwrap_or(true);
        let unknown = model["unk_token"].as_str().unwrap_or("[UNK]");
        Ok(Self {
            unknown: *ids.get(unknown).ok_or_else(|| missing(unknown))?,
            lowercase,
            // Accents go with the capitals unless the file says otherwise.
            strip_accents: normalizer["strip_accents"].as_bool().unwrap_or(lowercase),
            split_chinese: normalizer["handle_chinese_chars"].as_bool().unwrap_or(true),
            longest_word: model["max_input_chars_per_word"].as_u64().unwrap_or(100) as usize,
            ids,
            special,
        })
    }

    /// The ids of one sequence: `[CLS]`, the text, `[SEP]`.
    ///
    /// # Errors
    ///
    /// The vocabulary has no `[CLS]` or `[SEP]`.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>, Box<dyn Error>> {
        let id = |token: &str| self.ids.get(token).copied().ok_or_else(|| missing(token));
        let mut ids = vec![id("[CLS]")?];
        let mut rest = text;
        while let Some((at, token)) = self.next_special(rest) {
            self.encode_plain(&rest[..at], &mut ids);
            ids.push(id(token)?);
            rest = &rest[at + token.len()..];
        }
        self.encode_plain(rest, &mut ids);
        ids.push(id("[SEP]")?);
        Ok(ids)
    }

    /// The first special token in `text`, with the byte where it begins.
    fn next_special(&self, text: &str) -> Option<(usize, &str)> {
        let found = self.special.iter().filter_map(|token| Some((text.find(token)?, &**token)));
        found.min_by_key(|(at, _)| *at)
    }

    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) {
        let text = self.normalize(text);
        for run in text.split_whitespace() {
            let mut word = String::new();
            for c in run.chars() {
                if is_punctuation(c) {
                    self.encode_word(&std::mem::take(&mut word), ids);
                    self.encode_word(c.encode_utf8(&mut [0; 4]), ids);
                } else {
                    word.push(c);
                }
            }
            self.encode_word(&word, ids);
        }
    }

    fn normalize(&self, text: &str) -> String {
        let mut clean = String::new();
        for c in text.chars().filter(|c| !is_noise(*c)) {
            if c.is_whitespace() {
                clean.push(' ');
            } else if self.split_chinese && is_chinese(c) {
                clean.extend([' ', c, ' ']);
            } else {
                clean.push(c);
            }
        }
        if self.strip_accents {
            let is_mark = |c: &char| c.general_category() == GeneralCategory::NonspacingMark;
            clean = clean.nfd().filter(|c| !is_mark(c)).collect();
        }
        if self.lowercase { clean.chars().flat_map(char::to_lowercase).collect() } else { clean }
    }

    /// Appends the longest known pieces of `word`, or the unknown token if they do not cover it.
    fn encode_word(&self, word: &str, ids: &mut Vec<u32>) {
        if word.is_empty() {
            return;
        }
        let before = ids.len();
        let mut rest = word;
        let mut piece = String::new();
        while !rest.is_empty() && word.chars().count() <= self.longest_word {
            let ends = rest.char_indices().map(|(at, c)| at + c.len_utf8()).rev();
            let longest = ends.into_iter().find_map(|end| {
                piece.clear();
                piece.push_str(if rest.len() < word.len() { "##" } else { "" });
                piece.push_str(&rest[..end]);
                Some((end, *self.ids.get(&piece)?))
            });
            let Some((end, id)) = longest else { break };
            ids.push(id);
            rest = &rest[end..];
        }
        if !rest.is_empty() {
            ids.truncate(before);
            ids.push(self.unknown);
        }
    }
}

fn kind_of(part: &Value) -> &str {
    part["type"].as_str().unwrap_or("none")
}

fn expect(part: &str, found: &str, wanted: &str) -> Result<(), String> {
    if found == wanted {
        return Ok(());
    }
    Err(format!("this example reads BERT's tokenizer: expected {part} {wanted}, found {found}"))
}

fn missing(token: &str) -> String {
    format!("the tokenizer's vocabulary has no {token}")
}

/// What BERT drops: characters that stand for nothing. Tabs and line ends are spaces.
fn is_noise(c: char) -> bool {
    let control = c.general_category_group() == GeneralCategoryGroup::Other;
    matches!(c, '\0' | '\u{fffd}') || (control && !matches!(c, '\t' | '\n' | '\r'))
}

/// Every ASCII sign counts, also those that Unicode calls symbols (`$`, `+`, `^`).
fn is_punctuation(c: char) -> bool {
    c.is_ascii_punctuation() || c.general_category_group() == GeneralCategoryGroup::Punctuation
}

/// The blocks of CJK ideographs that BERT splits into single characters.
fn is_chinese(c: char) -> bool {
    matches!(u32::from(c),
        0x4e00..=0x9fff | 0x3400..=0x4dbf | 0x20000..=0x2a6df | 0x2a700..=0x2b73f
        | 0x2b740..=0x2b81f | 0x2b920..=0x2ceaf | 0xf900..=0xfaff | 0x2f800..=0x2fa1f)
}
