//! The common flags: one meaning wherever they apply, checked once.

use clap::{Args, ValueEnum};
use std::num::NonZeroUsize;
use tidekv::model::RopeScaling;
use tidekv::schedule::ScheduleKind;
use tidekv::select::{PRESETS, Selector};
use tidekv::{Element, RunConfig, SampleConfig};
use tidekv_cpu::{CpuConfig, Tier};

/// Order of a run, what it computes and what it keeps.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Prefill and cache")]
pub struct RunFlags {
    /// Order of prefill and when it evicts
    ///
    /// tide          each layer over all chunks before the next, compressed at its end (the system)
    /// post-prefill  each layer over the whole prompt at once, compressed at its end (the baseline)
    /// one-shot      each layer over the whole prompt at once, nothing evicted (the reference)
    /// chunked       each chunk through all layers before the next, nothing evicted
    /// chunked-post  as chunked, compressed when the prompt has ended
    /// tide-noevict  as tide, nothing evicted
    ///
    /// All compute the same bits; they differ in memory and in what is kept.
    #[arg(long, default_value = "tide", value_name = "NAME", verbatim_doc_comment)]
    pub schedule: ScheduleKind,
    /// C, tokens that pass through a layer at a time
    ///
    /// It decides how much memory activations take while the prompt is read: halving C halves them.
    /// It changes no bit of the result. Very small chunks are slower.
    #[arg(long, default_value = "2048", value_name = "C", value_parser = positive)]
    pub chunk: NonZeroUsize,
    #[command(flatten)]
    pub cache: CacheFlags,
    /// Largest answer in tokens
    #[arg(long, default_value = "256", value_name = "T", value_parser = count)]
    pub max_tokens: usize,
}

/// What a run computes and keeps, in whichever order.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Prefill and cache")]
pub struct CacheFlags {
    /// Which positions are kept where the schedule evicts
    #[arg(long, default_value = "snapkv", value_name = "SELECTOR", long_help = selector_help())]
    pub selector: Selector,
    /// K, positions kept per KV head and layer
    ///
    /// Observation window and sinks are counted in it, and a prompt of at most K tokens is kept
    /// whole. It decides how much memory the prompt takes after it has been read, and how much of it
    /// the answer can draw on. Such as 4096 or 4k.
    #[arg(long, default_value = "4096", value_name = "K", value_parser = count)]
    pub budget: usize,
    /// bs, keys scored at a time at a layer's end
    ///
    /// It bounds the memory of scoring and changes no result.
    #[arg(long, default_value = "1024", value_name = "BS", value_parser = positive)]
    pub score_block: NonZeroUsize,
    /// Storage of K/V [default: bf16, or f32 with --precision f32]
    #[arg(long, value_name = "bf16|f16|f32")]
    pub kv_type: Option<Element>,
    /// Storage of hidden states between layers [default: bf16, or f32 with --precision f32]
    #[arg(long, value_name = "bf16|f16|f32")]
    pub bridge_type: Option<Element>,
    /// auto, or f32 for everything in single precision
    #[arg(long, default_value = "auto")]
    pub precision: Precision,
    /// Stretch the context: none, linear:F or yarn:F, where F is how many times longer it gets
    /// [default: what the model says]
    #[arg(long, value_name = "SCALING")]
    pub rope_scaling: Option<RopeScaling>,
    /// Most memory TideKV may allocate, such as 8GiB; a run whose plan needs more is refused
    /// [default: what the machine or its control group has free]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub memory_limit: Option<u64>,
}

/// How the CPU is used.
#[derive(Args, Debug, Clone, Copy)]
#[command(next_help_heading = "CPU")]
pub struct CpuFlags {
    /// Threads [default: all the process may use]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<NonZeroUsize>,
    /// Limit the instruction set: portable, avx2 or avx512 [default: the best there is]
    #[arg(long, value_name = "TIER")]
    pub isa: Option<Tier>,
}

/// How tokens of the answer are chosen.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Sampling")]
pub struct SampleFlags {
    /// 0 always takes the most likely token; larger is more varied
    #[arg(long, default_value = "0", value_name = "T", value_parser = temperature)]
    #[arg(allow_negative_numbers = true)]
    pub temperature: f32,
    /// Only the N most likely tokens [default: all]
    #[arg(long, value_name = "N", value_parser = top_k)]
    pub top_k: Option<usize>,
    /// Only the most likely tokens that together reach this probability
    #[arg(long, default_value = "1", value_name = "P", value_parser = probability)]
    #[arg(allow_negative_numbers = true)]
    pub top_p: f32,
    /// Same seed, same answer
    #[arg(long, default_value = "0", value_name = "N")]
    pub seed: u64,
    /// Text that ends the answer; may be given several times
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub stop: Vec<String>,
}

/// Arithmetic and storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Precision {
    /// bf16 storage of K/V and hidden states.
    Auto,
    /// Single precision everywhere.
    F32,
}

impl RunFlags {
    /// The run's settings.
    pub fn config(&self) -> RunConfig {
        RunConfig {
            schedule: self.schedule.with_chunk(self.chunk),
            max_new_tokens: self.max_tokens,
            ..self.cache.config()
        }
    }
}

impl CacheFlags {
    /// The settings of a run in the default order; a missing memory limit becomes
    /// what the machine has.
    pub fn config(&self) -> RunConfig {
        let element = match self.precision {
            Precision::Auto => Element::Bf16,
            Precision::F32 => Element::F32,
        };
        RunConfig {
            selector: self.selector.clone(),
            budget: self.budget,
            score_block: self.score_block,
            kv: self.kv_type.unwrap_or(element),
            bridge: self.bridge_type.unwrap_or(element),
            memory_limit: self.memory_limit.or_else(tidekv::memory::default_limit),
            ..RunConfig::default()
        }
    }
}

impl CpuFlags {
    /// The backend's settings.
    pub fn config(&self) -> CpuConfig {
        CpuConfig { threads: self.threads, tier: self.isa }
    }
}

impl SampleFlags {
    /// The sampler's settings.
    pub fn config(&self) -> SampleConfig {
        SampleConfig {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            seed: self.seed,
        }
    }
}

/// The presets, as the engine describes them, and how to write another selector.
fn selector_help() -> String {
    let width = PRESETS.iter().map(|preset| preset.name.len()).max().unwrap_or(0);
    let lines =
        PRESETS.iter().map(|preset| format!("{:<width$}  {}\n", preset.name, preset.summary));
    format!(
        "Which positions are kept where the schedule evicts\n\n{}\nor a product of parts, such as \
         \"observation(window=32,kernel=7,pool=max)+sinks(4)\" or \"recency+sinks(8)\".\n\nsnapkv \
         keeps what the end of the prompt attends to, so put the question there; what the question \
         does not look at may be gone for a second one. streaming and recent look at positions \
         only.",
        lines.collect::<String>()
    )
}

/// The value if the sampler takes it.
fn checked<T>(value: T, config: SampleConfig) -> Result<T, String> {
    config.validate().map(|()| value).map_err(|error| error.to_string())
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number"))
}

fn temperature(text: &str) -> Result<f32, String> {
    let temperature = number(text)?;
    checked(temperature, SampleConfig { temperature, ..SampleConfig::default() })
}

fn top_k(text: &str) -> Result<usize, String> {
    let k = number(text)?;
    checked(k, SampleConfig { top_k: Some(k), ..SampleConfig::default() })
}

fn probability(text: &str) -> Result<f32, String> {
    let top_p = number(text)?;
    checked(top_p, SampleConfig { top_p, ..SampleConfig::default() })
}

/// A count such as 4096, 128k or 1M (k and M are powers of 1,024, as in context
/// lengths).
pub fn count(text: &str) -> Result<usize, String> {
    if text == "auto" {
        return Err("`auto` is not available yet; give a number such as 4096 or 4k".to_owned());
    }
    let number = scaled(text, &[("k", 10), ("K", 10), ("m", 20), ("M", 20)]);
    number
        .and_then(|number| usize::try_from(number).ok())
        .ok_or_else(|| format!("`{text}` is not a count such as 4096, 128k or 1M"))
}

/// A count of at least 1.
pub fn positive(text: &str) -> Result<NonZeroUsize, String> {
    NonZeroUsize::new(count(text)?).ok_or_else(|| "must be at least 1".to_owned())
}

/// A number of threads. Each has its share of scratch and a stack, so a slip of
/// the finger should not take the machine down.
fn threads(text: &str) -> Result<NonZeroUsize, String> {
    const MOST: usize = 1024;
    let threads = positive(text)?;
    if threads.get() > MOST { Err(format!("must be at most {MOST}")) } else { Ok(threads) }
}

/// A size such as 800MiB, 8G or 8GiB (powers of 1,024).
pub fn bytes(text: &str) -> Result<u64, String> {
    let units = [
        ("KiB", 10),
        ("MiB", 20),
        ("GiB", 30),
        ("TiB", 40),
        ("K", 10),
        ("M", 20),
        ("G", 30),
        ("T", 40),
        ("B", 0),
    ];
    scaled(text, &units).ok_or_else(|| format!("`{text}` is not a size such as 800MiB, 8G or 8GiB"))
}

/// A number with an optional unit of `2^shift`; fractions are allowed before a
/// unit.
fn scaled(text: &str, units: &[(&str, u32)]) -> Option<u64> {
    let text = text.trim();
    let unit = units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (number, shift) = unit.unwrap_or((text, 0));
    let number = number.trim();
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift);
    }
    let fraction: f64 = number.parse().ok()?;
    let scaled = fraction * (1u64 << shift) as f64;
    let sensible = shift > 0 && scaled.is_finite() && (0.0..9e18).contains(&scaled);
    sensible.then_some(scaled as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_sizes_accept_units_and_refuse_nonsense() {
        assert_eq!(count("128k"), Ok(131_072));
        assert_eq!(count("4096"), Ok(4096));
        assert_eq!(count("1.5k"), Ok(1536));
        assert_eq!(bytes("8GiB"), Ok(8 << 30));
        assert_eq!(bytes("8G"), Ok(8 << 30));
        assert_eq!(bytes("0.5G"), Ok(1 << 29));
        assert_eq!(bytes("100"), Ok(100));
        for text in ["", "k", "-1", "1.5", "8X", "1e400k", "NaNk", "auto", "99999999999999999999"] {
            assert!(count(text).is_err(), "{text}");
        }
        assert!(positive("0").is_err());
        assert!(threads("1024").is_ok() && threads("1025").is_err());
        assert!(bytes("99999999999G").is_err());
    }

    #[test]
    fn sampling_numbers_are_those_the_sampler_takes() {
        assert_eq!(temperature("0.7"), Ok(0.7));
        assert_eq!(top_k("40"), Ok(40));
        assert_eq!(probability("0.9"), Ok(0.9));
        for text in ["-1", "NaN", "inf", "warm"] {
            assert!(temperature(text).is_err() && probability(text).is_err(), "{text}");
        }
        assert!(probability("0").is_err() && probability("1.1").is_err());
        assert!(top_k("0").is_err() && top_k("-1").is_err());
    }

    #[test]
    fn help_names_every_preset() {
        let help = selector_help();
        assert!(PRESETS.iter().all(|preset| help.contains(preset.summary)), "{help}");
    }
}
