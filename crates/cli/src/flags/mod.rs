//! The common flags: one meaning wherever they apply, checked once.

mod chunk;
mod number;
mod sample;

pub use chunk::{ChosenChunk, ChunkFlag};
pub use number::{at_least, bytes, count, positive};
pub use sample::{LogprobFlags, SampleFlags};

use crate::bench::{Kept, Machine};
use clap::{Args, ValueEnum};
use number::threads;
use std::num::NonZeroUsize;
use tidekv::memory::{ChunkChoice, ChunkRates};
use tidekv::model::RopeScaling;
use tidekv::schedule::ScheduleKind;
use tidekv::select::{PRESETS, Selector};
use tidekv::{Element, RunConfig};
use tidekv_cpu::{CpuConfig, Pack, Tier};

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
    /// It changes no bit of the result. Very small chunks are slower. auto chooses the smallest that
    /// costs less than 2 % of the speed that `tidekv bench machine` has measured (2048 without it),
    /// or the largest that --memory-limit allows, and says which and why.
    #[arg(long, default_value = "2048", value_name = "C|auto")]
    pub chunk: ChunkFlag,
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
    #[command(flatten)]
    pub storage: StorageFlags,
}

/// In which numbers a run computes, how far positions reach, and how much memory it may have.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Prefill and cache")]
pub struct StorageFlags {
    /// Storage of K/V [default: bf16, or f32 with --precision f32]
    #[arg(long, value_name = "bf16|f16|f32")]
    pub kv_type: Option<Element>,
    /// Storage of hidden states between layers [default: bf16, or f32 with --precision f32]
    #[arg(long, value_name = "bf16|f16|f32")]
    pub bridge_type: Option<Element>,
    /// auto, or f32 for everything in single precision
    #[arg(long, default_value = "auto")]
    pub precision: Precision,
    /// Stretch the context: none, linear:F, dynamic:F, yarn:F or llama3:F, where F, from 1 to 1024,
    /// is how many times longer it gets [default: what the model says]
    #[arg(long, value_name = "SCALING")]
    pub rope_scaling: Option<RopeScaling>,
    /// Most memory TideKV may allocate, such as 8GiB or 8G (of 1,024) or 8GB (of 1,000); a run whose
    /// plan needs more is refused
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
    /// Limit the instruction set: portable, avx2, avx512 or avx512vnni [default: the best there is]
    #[arg(long, value_name = "TIER")]
    pub isa: Option<Tier>,
    /// How long packed weights live: slab (4 MiB, packed again for every chunk) or layer
    ///
    /// Products take weights in a packed form. layer packs all of a layer once per prompt, which
    /// saves a few percent of the time with small chunks and takes about two bytes of memory per
    /// weight of one layer (four without fixed point). It changes no bit of the result.
    #[arg(long, default_value = "slab", value_name = "slab|layer")]
    pub pack: Pack,
}

/// Arithmetic and storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Precision {
    /// bf16 storage of K/V and hidden states; matrix products and attention of the prompt in the
    /// fastest form that is more exact than bf16.
    Auto,
    /// Single precision everywhere.
    F32,
}

impl RunFlags {
    /// What `--chunk auto` makes of the machine: `choose` gets its `rates`, if they are known. `None`
    /// where the chunk is given.
    ///
    /// # Errors
    /// Those of both.
    pub fn chosen_chunk(
        &self,
        rates: impl FnOnce() -> anyhow::Result<Option<ChunkRates>>,
        choose: impl FnOnce(Option<ChunkRates>) -> Result<ChunkChoice, tidekv::Error>,
    ) -> anyhow::Result<Option<ChosenChunk>> {
        if self.chunk != ChunkFlag::Auto {
            return Ok(None);
        }
        Ok(Some(choose(rates()?)?.into()))
    }

    /// The run's settings; `--chunk auto` still has to be chosen.
    pub fn config(&self) -> RunConfig {
        RunConfig {
            schedule: self.schedule.with_chunk(self.chunk.tokens()),
            max_new_tokens: self.max_tokens,
            ..self.cache.config()
        }
    }
}

impl CacheFlags {
    /// The settings of a run in the default order; a missing memory limit becomes
    /// what the machine has.
    pub fn config(&self) -> RunConfig {
        RunConfig {
            selector: self.selector.clone(),
            budget: self.budget,
            score_block: self.score_block,
            kv: self.storage.kv(),
            bridge: self.storage.bridge(),
            memory_limit: self.storage.memory_limit(),
            ..RunConfig::default()
        }
    }
}

impl StorageFlags {
    /// Storage of K/V.
    pub fn kv(&self) -> Element {
        self.kv_type.unwrap_or(self.precision.element())
    }

    /// Storage of hidden states between layers.
    pub fn bridge(&self) -> Element {
        self.bridge_type.unwrap_or(self.precision.element())
    }

    /// Largest number of bytes that may be allocated: a missing limit becomes what the machine
    /// has, if it tells.
    pub fn memory_limit(&self) -> Option<u64> {
        self.memory_limit.or_else(tidekv::memory::default_limit)
    }
}

impl Precision {
    fn element(self) -> Element {
        match self {
            Precision::Auto => Element::Bf16,
            Precision::F32 => Element::F32,
        }
    }
}

impl CpuFlags {
    /// The backend's settings.
    pub fn config(&self, precision: Precision) -> CpuConfig {
        let precision = match precision {
            Precision::Auto => tidekv_cpu::Precision::Auto,
            Precision::F32 => tidekv_cpu::Precision::F32,
        };
        CpuConfig { threads: self.threads, tier: self.isa, precision, pack: self.pack }
    }

    /// The rates of this machine's kernels that were measured earlier.
    ///
    /// # Errors
    /// An instruction set that the CPU lacks.
    pub fn kept(&self, precision: Precision) -> anyhow::Result<Kept> {
        let cpu = self.config(precision);
        let (isa, threads) = (cpu.isa()?, cpu.n_threads().get());
        Ok(match precision {
            Precision::Auto => Machine::kept(isa.name(), threads),
            Precision::F32 => Kept::Nothing,
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_every_preset() {
        let help = selector_help();
        assert!(PRESETS.iter().all(|preset| help.contains(preset.summary)), "{help}");
    }
}
