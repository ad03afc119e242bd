//! What `tidekv inspect` says, as an object and for people.

use super::contents::{Contents, Dimension, FIELDS, ModelPart, file_type};
use crate::output::{counted, excerpt, printable, table, wrapped};
use serde::Serialize;
use std::collections::BTreeMap;
use tidekv::memory::Bytes;
use tidekv::model::Shape;
use tidekv::text::{TextError, Tokenizer};
use tidekv_format::TensorInfo;

/// Everything about a model's files.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The model as the user named it.
    pub model: String,
    /// Its files.
    pub files: Vec<ModelPart>,
    /// Length of all files.
    pub bytes: u64,
    /// `GGUF` or `safetensors`.
    pub container: &'static str,
    /// Version of the container.
    pub version: Option<u32>,
    /// Family, as the file names it.
    pub architecture: Option<String>,
    /// Name of the model.
    pub name: Option<String>,
    /// What the file says of its license.
    pub license: Option<License>,
    /// Numbers in all tensors.
    pub parameters: u64,
    /// Bits per number, over the tensors whose size is known.
    pub bits_per_parameter: f64,
    /// Mixture of types, or the method of quantisation, as the files name it.
    pub quantisation: Option<String>,
    /// Sizes, by the names of the engine's shapes.
    pub dimensions: BTreeMap<&'static str, Dimension>,
    /// Tensors by type, the most bytes first.
    pub tensor_types: Vec<TypeReport>,
    /// All tensors, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensors: Option<Vec<TensorReport>>,
    /// The vocabulary, where the file holds one.
    pub tokenizer: Option<TokenizerReport>,
    /// Whether the engine runs the model.
    pub supported: bool,
    /// Whether it reads and writes text; a model that does not takes token ids.
    pub text_supported: bool,
    /// What is missing, or wrong with the file.
    pub problems: Vec<String>,
    /// What it runs in, if it is supported.
    pub fit: Option<Fit>,
}

/// Characters of a line about a problem, beside its label.
const PROBLEM_WIDTH: usize = 80;

/// A license, as the file states it.
#[derive(Debug, Serialize)]
pub struct License {
    /// SPDX expression or another short name (`general.license`).
    pub id: Option<String>,
    /// Long name.
    pub name: Option<String>,
    /// Where its text is.
    pub link: Option<String>,
}

/// The tensors of one type.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct TypeReport {
    /// The type's name.
    #[serde(rename = "type")]
    pub ty: String,
    /// How many tensors.
    pub tensors: usize,
    /// Numbers in them.
    pub parameters: u64,
    /// Their bytes; `null` where the type's size is not known.
    pub bytes: Option<u64>,
}

/// One tensor.
#[derive(Debug, Serialize)]
pub struct TensorReport {
    /// Its name.
    pub name: String,
    /// Its type's name.
    #[serde(rename = "type")]
    pub ty: String,
    /// Fastest dimension first.
    pub shape: Vec<u64>,
    /// Its bytes.
    pub bytes: Option<u64>,
}

/// The vocabulary.
#[derive(Debug, Serialize)]
pub struct TokenizerReport {
    /// Family (`tokenizer.ggml.model`), or `tokenizer.json`.
    pub model: Option<String>,
    /// Pre-tokenizer.
    pub pre: Option<String>,
    /// Number of tokens.
    pub tokens: usize,
    /// Id of the token that begins a text.
    pub bos: Option<u32>,
    /// Id of the token that ends one.
    pub eos: Option<u32>,
    /// Whether the file has a chat template.
    pub chat_template: bool,
}

/// The largest prompt that fits with the default settings.
#[derive(Debug, Serialize)]
pub struct Fit {
    /// In tokens; 0 if none fits.
    pub largest_prompt_tokens: usize,
    /// Bytes that a run may allocate.
    pub limit_bytes: Option<u64>,
}

impl Report {
    /// What the files say; whether they are supported is still open.
    pub fn new(model: &str, contents: &Contents) -> Self {
        let (container, version) = contents.container();
        let files = contents.parts();
        let tensors = contents.tensors();
        let sized = tensors.iter().filter_map(|tensor| Some((tensor, tensor.n_bytes?)));
        let (mut parameters, mut bits) = (0.0, 0.0);
        for (tensor, bytes) in sized {
            parameters += tensor.n_elements() as f64;
            bits += 8.0 * bytes as f64;
        }
        let owned = |key: &str| contents.string(key).map(str::to_owned);
        let number = |key: &str| contents.metadata()?.u64(key).ok()?;
        let quantisation = number("general.file_type")
            .map(|id| file_type(id).map_or(format!("file type {id}"), str::to_owned));
        Report {
            model: model.to_owned(),
            bytes: files.iter().fold(0, |sum, part| sum.saturating_add(part.bytes)),
            files,
            container,
            version,
            architecture: contents.architecture().map(str::to_owned),
            name: owned("general.name"),
            license: license(contents),
            parameters: sum(tensors.iter().map(TensorInfo::n_elements)),
            bits_per_parameter: if parameters > 0.0 { bits / parameters } else { 0.0 },
            quantisation,
            dimensions: FIELDS
                .iter()
                .filter_map(|field| Some((field.key, contents.dimension(field)?)))
                .collect(),
            tensor_types: tensor_types(tensors),
            tensors: None,
            tokenizer: tokenizer(contents),
            supported: false,
            text_supported: false,
            problems: Vec::new(),
            fit: None,
        }
    }

    /// Adds every tensor.
    pub fn list_tensors(&mut self, contents: &Contents) {
        let tensor = |tensor: &TensorInfo| TensorReport {
            name: tensor.name.clone(),
            ty: tensor.ty.to_string(),
            shape: tensor.shape.clone(),
            bytes: tensor.n_bytes,
        };
        self.tensors = Some(contents.tensors().iter().map(tensor).collect());
    }

    /// Takes the engine's word where it knows better than the file.
    pub fn set_shape(&mut self, shape: &Shape) {
        let Shape {
            n_layers, d_model, d_ff, n_heads, n_kv_heads, head_dim, vocab, context, ..
        } = shape;
        let known = [
            ("n_layers", n_layers),
            ("d_model", d_model),
            ("d_ff", d_ff),
            ("n_heads", n_heads),
            ("n_kv_heads", n_kv_heads),
            ("head_dim", head_dim),
            ("vocab", vocab),
            ("context", context),
        ];
        self.dimensions.extend(known.map(|(key, &number)| (key, Dimension::One(number as u64))));
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n{}", printable(&self.model), lines(&self.facts()));
        let dimensions = FIELDS
            .iter()
            .filter_map(|field| Some((field.label, self.dimensions.get(field.key)?.to_string())));
        text += &format!("\n{}", lines(&dimensions.collect::<Vec<_>>()));
        text += &format!("\n{}", table(&self.type_rows()));
        if let Some(tensors) = &self.tensors {
            text += &format!("\n{}", table(&tensor_rows(tensors)));
        }
        text + &format!("\n{}", lines(&self.verdict()))
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let container = match self.version {
            Some(version) => format!("{} version {version}", self.container),
            None => self.container.to_owned(),
        };
        let mut facts: Vec<_> = self
            .files
            .iter()
            .map(|part| ("file", format!("{}, {}", part.path.display(), Bytes(part.bytes))))
            .collect();
        facts.push(("format", format!("{container}, {} in all", Bytes(self.bytes))));
        let stated =
            |text: &Option<String>| text.as_deref().map_or("not stated".to_owned(), excerpt);
        facts.push(("architecture", stated(&self.architecture)));
        facts.push(("name", stated(&self.name)));
        facts.push((
            "license",
            self.license.as_ref().map_or("not stated".to_owned(), License::text),
        ));
        facts.push((
            "parameters",
            format!("{} at {:.2} bits", rounded(self.parameters), self.bits_per_parameter),
        ));
        facts.push(("quantisation", stated(&self.quantisation)));
        facts.push(match &self.tokenizer {
            Some(tokenizer) => ("tokenizer", tokenizer.text()),
            None => ("tokenizer", "not read".to_owned()),
        });
        facts
    }

    fn type_rows(&self) -> Vec<Vec<String>> {
        let heading = ["tensor type", "tensors", "parameters", "bytes"].map(str::to_owned).to_vec();
        let row = |of: &TypeReport| {
            let bytes = of.bytes.map_or("unknown".to_owned(), |bytes| Bytes(bytes).to_string());
            vec![excerpt(&of.ty), of.tensors.to_string(), rounded(of.parameters), bytes]
        };
        std::iter::once(heading).chain(self.tensor_types.iter().map(row)).collect()
    }

    fn verdict(&self) -> Vec<(&'static str, String)> {
        let supported = match (self.supported, self.text_supported) {
            (false, _) => "no",
            (true, false) => "for token ids alone (--prompt-ids)",
            (true, true) => "yes",
        };
        let mut lines = vec![("supported", supported.to_owned())];
        for problem in &self.problems {
            let label = std::iter::once("problem").chain(std::iter::repeat(""));
            lines.extend(label.zip(wrapped(problem, PROBLEM_WIDTH)));
        }
        if let Some(fit) = &self.fit {
            let limit = match fit.limit_bytes {
                Some(limit) => format!("within {}", Bytes(limit)),
                None => "without a memory limit".to_owned(),
            };
            let tokens = counted(fit.largest_prompt_tokens, "token");
            lines.push((
                "largest prompt",
                format!("{tokens} {limit} with the default settings (`tidekv plan` says more)"),
            ));
        }
        lines
    }
}

impl License {
    fn text(&self) -> String {
        let parts = [&self.id, &self.name, &self.link].into_iter().flatten();
        parts.map(|part| excerpt(part)).collect::<Vec<_>>().join(", ")
    }
}

impl TokenizerReport {
    /// Of a `tokenizer.json`, as the engine has read it.
    pub fn read_by_engine(tokenizer: &Tokenizer) -> Self {
        TokenizerReport {
            model: Some("tokenizer.json".to_owned()),
            pre: None,
            tokens: tokenizer.vocab_len(),
            bos: tokenizer.prompt_bos(),
            eos: tokenizer.eos().first().copied(),
            chat_template: !matches!(tokenizer.chat_template(), Err(TextError::NoChatTemplate)),
        }
    }

    fn text(&self) -> String {
        let stated = |text: &Option<String>| text.as_deref().map_or("none".to_owned(), excerpt);
        let id = |id: Option<u32>| id.map_or("none".to_owned(), |id| id.to_string());
        format!(
            "{}, pre-tokenizer {}, {}, BOS {}, EOS {}, {} chat template",
            stated(&self.model),
            stated(&self.pre),
            counted(self.tokens, "token"),
            id(self.bos),
            id(self.eos),
            if self.chat_template { "with a" } else { "without" }
        )
    }
}

fn license(contents: &Contents) -> Option<License> {
    let owned = |key: &str| contents.string(key).map(str::to_owned);
    let license = License {
        id: owned("general.license"),
        name: owned("general.license.name"),
        link: owned("general.license.link"),
    };
    let stated = license.id.is_some() || license.name.is_some() || license.link.is_some();
    stated.then_some(license)
}

fn tokenizer(contents: &Contents) -> Option<TokenizerReport> {
    let metadata = contents.metadata()?;
    let tokens = metadata.strings("tokenizer.ggml.tokens").ok().flatten();
    let owned = |key: &str| contents.string(key).map(str::to_owned);
    let model = owned("tokenizer.ggml.model");
    if tokens.is_none() && model.is_none() {
        return None;
    }
    let id = |key: &str| metadata.u32(key).ok().flatten();
    Some(TokenizerReport {
        model,
        pre: owned("tokenizer.ggml.pre"),
        tokens: tokens.map_or(0, <[String]>::len),
        bos: id("tokenizer.ggml.bos_token_id"),
        eos: id("tokenizer.ggml.eos_token_id"),
        chat_template: contents.string("tokenizer.chat_template").is_some(),
    })
}

fn tensor_types(tensors: &[TensorInfo]) -> Vec<TypeReport> {
    let mut types: BTreeMap<String, TypeReport> = BTreeMap::new();
    for tensor in tensors {
        let ty = tensor.ty.to_string();
        let new = TypeReport { ty: ty.clone(), tensors: 0, parameters: 0, bytes: Some(0) };
        let entry = types.entry(ty).or_insert(new);
        entry.tensors += 1;
        entry.parameters = entry.parameters.saturating_add(tensor.n_elements());
        entry.bytes = entry.bytes.zip(tensor.n_bytes).map(|(sum, n)| sum.saturating_add(n));
    }
    let mut types: Vec<_> = types.into_values().collect();
    types.sort_by_key(|of| std::cmp::Reverse(of.bytes));
    types
}

fn tensor_rows(tensors: &[TensorReport]) -> Vec<Vec<String>> {
    let heading = ["tensor", "type", "shape", "bytes"].map(str::to_owned).to_vec();
    let row = |tensor: &TensorReport| {
        let shape = tensor.shape.iter().map(u64::to_string).collect::<Vec<_>>().join(" x ");
        let bytes = tensor.bytes.map_or("unknown".to_owned(), |bytes| Bytes(bytes).to_string());
        vec![excerpt(&tensor.name), excerpt(&tensor.ty), shape, bytes]
    };
    std::iter::once(heading).chain(tensors.iter().map(row)).collect()
}

fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

/// Labels and what they stand for, made [`printable`], aligned.
fn lines(facts: &[(&str, String)]) -> String {
    let width = facts.iter().map(|(label, _)| label.len()).max().unwrap_or(0);
    let line = |(label, fact): &(&str, String)| format!("  {label:<width$}  {}\n", printable(fact));
    facts.iter().map(line).collect()
}

/// A count for people: 134.5 million.
fn rounded(number: u64) -> String {
    match number {
        0..10_000 => number.to_string(),
        10_000..1_000_000 => format!("{:.1} thousand", number as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} million", number as f64 / 1e6),
        _ => format!("{:.2} billion", number as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_short() {
        let shown = [0, 9_999, 10_000, 134_515_008, 8_030_261_248].map(rounded);
        assert_eq!(shown, ["0", "9999", "10.0 thousand", "134.5 million", "8.03 billion"]);
    }

    #[test]
    fn labels_line_up() {
        let facts = [("a", "1".to_owned()), ("long", "2".to_owned())];
        assert_eq!(lines(&facts), "  a     1\n  long  2\n");
        assert_eq!(lines(&[]), "");
        assert_eq!(lines(&[("a", "1\n  b  2".to_owned())]), "  a  1\\n  b  2\n");
    }
}
