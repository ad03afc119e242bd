//! The common flags: one meaning wherever they apply, checked once.

use clap::{Args, ValueEnum};
use std::num::NonZeroUsize;
use tidekv::model::RopeScaling;
use tidekv::schedule::ScheduleKind;
use tidekv::select::Selector;
use tidekv::{Element, RunConfig, SampleConfig};
use tidekv_cpu::{CpuConfig, Tier};

/// What a run computes and keeps.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Prefill and cache")]
pub struct RunFlags {
    /// Order of prefill and when it evicts
    ///
    /// tide: layer by layer over all chunks, compressed at each layer's end (the system).
    /// post-prefill: whole prompt per layer, compressed at its end (selectors as published).
    /// one-shot, chunked, tide-noevict: nothing evicted. chunked-post: ordinary chunks, compressed
    /// at the prompt's end.
    #[arg(long, default_value = "tide", value_name = "NAME")]
    pub schedule: ScheduleKind,
    /// Which positions are kept: snapkv, snapkv-kvpress, streaming, recent, none, or a product such
    /// as "observation(window=32,kernel=7,pool=max)+sinks(4)"
    #[arg(long, default_value = "snapkv", value_name = "SELECTOR")]
    pub selector: Selector,
    /// K, positions kept per KV head and layer, observation window and sinks included. A prompt of
    /// at most K tokens is kept whole
    #[arg(long, default_value = "4096", value_name = "K", value_parser = count)]
    pub budget: usize,
    /// C, tokens that pass through a layer at a time: smaller needs less memory
    #[arg(long, default_value = "2048", value_name = "C", value_parser = positive)]
    pub chunk: NonZeroUsize,
    /// bs, keys scored at a time at a layer's end; changes no result
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
    /// Stretch the context: none, linear:F or yarn:F [default: what the model says]
    #[arg(long, value_name = "SCALING")]
    pub rope_scaling: Option<RopeScaling>,
    /// Largest answer in tokens
    #[arg(long, default_value = "256", value_name = "T", value_parser = count)]
    pub max_tokens: usize,
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
    #[arg(long, value_name = "N", value_parser = positive)]
    pub threads: Option<NonZeroUsize>,
    /// Limit the instruction set: portable, avx2 or avx512 [default: the best there is]
    #[arg(long, value_name = "TIER")]
    pub isa: Option<Tier>,
}

/// How tokens of the answer are chosen.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Sampling")]
pub struct SampleFlags {
    /// 0 always takes the most likely token
    #[arg(long, default_value = "0", value_name = "T")]
    pub temperature: f32,
    /// Only the K most likely tokens
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,
    /// Only the most likely tokens that together reach this probability
    #[arg(long, default_value = "1", value_name = "P")]
    pub top_p: f32,
    /// Same seed, same answer
    #[arg(long, default_value = "0", value_name = "N")]
    pub seed: u64,
    /// Text that ends the answer; may be given several times
    #[arg(long, value_name = "TEXT")]
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
    /// The run's settings; a missing memory limit becomes what the machine has.
    pub fn config(&self) -> RunConfig {
        let element = match self.precision {
            Precision::Auto => Element::Bf16,
            Precision::F32 => Element::F32,
        };
        RunConfig {
            schedule: self.schedule.with_chunk(self.chunk),
            selector: self.selector.clone(),
            budget: self.budget,
            score_block: self.score_block,
            kv: self.kv_type.unwrap_or(element),
            bridge: self.bridge_type.unwrap_or(element),
            max_new_tokens: self.max_tokens,
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
        assert!(bytes("99999999999G").is_err());
    }
}
