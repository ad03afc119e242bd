//! What `normalizer`, `pre_tokenizer` and `post_processor` of `tokenizer.json` ask for, as our own steps.
//!
//! The `tokenizers` crate could run them as they are, but its normaliser and
//! its pre-tokenizers keep an entry per byte and its pattern engine backtracks:
//! a megabyte of one letter or of blanks takes long or overflows. So the
//! components are recognised, and what is not recognised is refused by name.

use super::super::error::TextError;
use super::super::pre::{PreTokenizer, table::GPT2};
use super::super::sentencepiece::{BLANK, SpacePrefix};
use serde_json::Value;

/// How text becomes what the model merges.
#[derive(Debug)]
pub(super) struct Pipeline {
    pub(super) spelling: Spelling,
    pub(super) pre: PreTokenizer,
}

/// How the vocabulary writes blanks and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    ByteLevel,
    Pieces(SpacePrefix),
}

/// Possessive repetitions of published patterns and what matches the same without: what follows them begins
/// with nothing that they repeat, or may be empty.
const POSSESSIVE: [(&str, &str); 3] = [
    (r"[^\r\n\p{L}\p{N}]?+\p{L}+", r"[^\r\n\p{L}\p{N}]?\p{L}+"),
    (r" ?[^\s\p{L}\p{N}]++[\r\n]*", r" ?[^\s\p{L}\p{N}]+[\r\n]*"),
    (r"\p{N}{1,3}+|", r"\p{N}{1,3}|"),
];

/// Reads both parts.
pub(super) fn read(normalizer: &Value, pre_tokenizer: &Value) -> Result<Pipeline, TextError> {
    let mut reader = Reader::default();
    for step in flat(normalizer, "normalizers") {
        reader.normalizer(step)?;
    }
    for step in flat(pre_tokenizer, "pretokenizers") {
        reader.pre_tokenizer(step)?;
    }
    let spelling = match (reader.byte_level, reader.blanks) {
        (true, false) => Spelling::ByteLevel,
        (false, true) => Spelling::Pieces(reader.prefix),
        (true, true) => return refuse("pre_tokenizer", "both byte-level words and marked blanks"),
        (false, false) => {
            return refuse("pre_tokenizer", "neither byte-level words nor marked blanks");
        }
    };
    let pre = PreTokenizer::new(reader.nfc, reader.patterns.iter().map(String::as_str))
        .map_err(|what| TextError::UnsupportedPart { part: "pre_tokenizer", what })?;
    Ok(Pipeline { spelling, pre })
}

/// The token that the post-processor puts in front of every prompt.
pub(super) fn prompt_bos(post_processor: &Value) -> Option<&str> {
    let template = flat(post_processor, "processors")
        .into_iter()
        .find(|step| kind(step) == "TemplateProcessing")?;
    let first = template["single"].get(0)?;
    first["SpecialToken"]["id"].as_str()
}

/// The steps of a component: itself, or those of a sequence.
fn flat<'v>(component: &'v Value, list: &str) -> Vec<&'v Value> {
    match component {
        Value::Null => Vec::new(),
        sequence if kind(sequence) == "Sequence" => {
            // A nested sequence is a step like any other here, and refused by its name.
            sequence[list].as_array().map(|steps| steps.iter().collect()).unwrap_or_default()
        }
        one => vec![one],
    }
}

fn kind(step: &Value) -> &str {
    step["type"].as_str().unwrap_or("")
}

fn refuse<T>(part: &'static str, what: impl Into<String>) -> Result<T, TextError> {
    Err(TextError::UnsupportedPart { part, what: what.into() })
}

/// What the steps so far ask for.
struct Reader {
    nfc: bool,
    prefix: SpacePrefix,
    /// Blanks are written `▁`.
    blanks: bool,
    /// Words are cut before the blanks are written so.
    patterns: Vec<String>,
    byte_level: bool,
}

impl Default for Reader {
    fn default() -> Reader {
        Reader {
            nfc: false,
            prefix: SpacePrefix::Never,
            blanks: false,
            patterns: Vec::new(),
            byte_level: false,
        }
    }
}

impl Reader {
    fn normalizer(&mut self, step: &Value) -> Result<(), TextError> {
        let is_blank = |value: &Value| value.as_str() == Some(BLANK.encode_utf8(&mut [0; 4]));
        match kind(step) {
            "NFC" => self.nfc = true,
            "Prepend" if is_blank(&step["prepend"]) && !self.blanks => {
                self.prefix = SpacePrefix::Sections;
            }
            "Replace"
                if step["pattern"]["String"].as_str() == Some(" ")
                    && is_blank(&step["content"]) =>
            {
                self.blanks = true;
            }
            _ => return refuse("normalizer", format!("the step {step}")),
        }
        Ok(())
    }

    fn pre_tokenizer(&mut self, step: &Value) -> Result<(), TextError> {
        const PART: &str = "pre_tokenizer";
        if self.byte_level {
            return refuse(PART, format!("a step behind ByteLevel: {step}"));
        }
        match kind(step) {
            "ByteLevel" => {
                // The field is true where it is missing.
                if step["add_prefix_space"].as_bool() != Some(false) {
                    return refuse(PART, "ByteLevel with a blank in front of each text");
                }
                if step["use_regex"].as_bool() != Some(false) {
                    self.patterns.push(GPT2.to_owned());
                }
                self.byte_level = true;
            }
            "Digits" => {
                let one = step["individual_digits"].as_bool() == Some(true);
                self.patterns.push(if one { r"\p{N}" } else { r"\p{N}+" }.to_owned());
            }
            "Split" => return self.split(step),
            "Metaspace" => return self.metaspace(step),
            _ => return refuse(PART, format!("the step {step}")),
        }
        Ok(())
    }

    fn split(&mut self, step: &Value) -> Result<(), TextError> {
        let inverted = step["invert"].as_bool() == Some(true);
        // Words kept and what is between them dropped: the same if a pattern leaves nothing between.
        let behavior = match (step["behavior"].as_str().unwrap_or(""), inverted) {
            ("Isolated", false) => "Isolated",
            ("Removed", true) => "Removed",
            // Text has no blanks any more: nothing is split.
            (_, false) if self.blanks && step["pattern"]["String"].as_str() == Some(" ") => {
                return Ok(());
            }
            _ => return refuse("pre_tokenizer", format!("the step {step}")),
        };
        let pattern = match (&step["pattern"]["Regex"], &step["pattern"]["String"]) {
            (Value::String(regex), Value::Null) => greedy(regex),
            (Value::Null, Value::String(literal)) => regex::escape(literal),
            _ => return refuse("pre_tokenizer", format!("the step {step}")),
        };
        let covers = pattern.ends_with(r"|\s+(?!\S)|\s+") && pattern.contains(r"[^\s\p{L}\p{N}]+");
        if behavior == "Removed" && !covers {
            return refuse("pre_tokenizer", format!("a pattern that may drop text: {pattern:?}"));
        }
        if is_possessive(&pattern) {
            return refuse("pre_tokenizer", format!("possessive repetition in {pattern:?}"));
        }
        self.patterns.push(pattern);
        Ok(())
    }

    fn metaspace(&mut self, step: &Value) -> Result<(), TextError> {
        if step["replacement"].as_str() != Some(BLANK.encode_utf8(&mut [0; 4])) {
            return refuse("pre_tokenizer", format!("the step {step}"));
        }
        self.prefix = match step["prepend_scheme"].as_str() {
            Some("never") => SpacePrefix::Never,
            Some("first") => SpacePrefix::First,
            Some("always") => SpacePrefix::SectionsWithout,
            None if step["add_prefix_space"].as_bool() == Some(false) => SpacePrefix::Never,
            None => SpacePrefix::SectionsWithout,
            Some(_) => return refuse("pre_tokenizer", format!("the step {step}")),
        };
        self.blanks = true;
        if step["split"].as_bool() != Some(false) {
            self.patterns.push(format!("{BLANK}?[^{BLANK}]+|{BLANK}"));
        }
        Ok(())
    }
}

/// `pattern` without the possessive repetitions that make no difference.
fn greedy(pattern: &str) -> String {
    POSSESSIVE
        .iter()
        .fold(pattern.to_owned(), |pattern, (possessive, same)| pattern.replace(possessive, same))
}

/// Whether a repetition is followed by `+`. Our engine would read that as a repetition of the repetition.
fn is_possessive(pattern: &str) -> bool {
    let mut repeated = false;
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        if repeated && c == '+' {
            return true;
        }
        let text = rest.as_str();
        let counted = c == '{' && text.starts_with(|c: char| c.is_ascii_digit());
        if counted {
            // To the end of `{1,3}`.
            rest = text.split_once('}').map_or("", |(_, behind)| behind).chars();
        }
        repeated = counted || matches!(c, '?' | '*' | '+');
    }
    false
}
