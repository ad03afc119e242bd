//! The chunk size C that a machine calls for.

use super::plan::{PlanInput, plan};
use super::suggest::SMALLEST_CHUNK;
use crate::config::{DEFAULT_CHUNK, RunConfig};
use crate::error::Error;
use crate::schedule::{Chunk, ScheduleKind};
use std::fmt;
use std::num::NonZeroUsize;

/// Rates of what decides how long prefill takes with chunks of some size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChunkRates {
    /// Floating-point operations per second of prefill's matrix products.
    pub product_flops: f64,
    /// Weights per second that are brought into the form which products take, once per chunk; a
    /// backend that does so once per layer has infinity.
    pub packed_weights: f64,
}

impl ChunkRates {
    /// Time of packing in the time of the products, with chunks of `chunk` tokens.
    fn packing_share(&self, chunk: usize) -> f64 {
        // Per weight: two operations for each token, and once its packing.
        let products = 2.0 * chunk as f64 / self.product_flops;
        1.0 / (self.packed_weights * products)
    }
}

/// Largest share of packing that is not worth the memory of a larger chunk. The next size would win
/// half of it.
const PACKING_SHARE: f64 = 0.02;

/// Sizes that are chosen for speed; below them other work per chunk begins to show.
const FOR_SPEED: [usize; 5] = [512, 1024, 2048, 4096, 8192];

/// A chunk size, and why it is that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkChoice {
    /// C.
    pub chunk: NonZeroUsize,
    /// What decided.
    pub reason: ChunkReason,
}

/// What decided a chunk size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChunkReason {
    /// The schedule takes the whole prompt at once.
    WholePrompt,
    /// The smallest with which this machine loses less than 2 % of its products' time.
    Speed,
    /// No rates of this machine are known: the default.
    Default,
    /// The largest that the memory limit allows.
    Memory,
    /// None that is tried fits the memory limit: the smallest.
    NoneFits,
}

impl fmt::Display for ChunkReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ChunkReason::WholePrompt => "the schedule reads the whole prompt at once",
            ChunkReason::Speed => "the smallest that costs less than 2 % of the speed here",
            ChunkReason::Default => "the default, as this machine has not been measured",
            ChunkReason::Memory => "the largest that the memory limit allows",
            ChunkReason::NoneFits => "the smallest, though the memory limit allows none",
        })
    }
}

/// Chooses C for `input`, whose own schedule's chunk does not matter: as large as speed wants it, and
/// no larger than the memory limit allows. `rates` are those of the machine, if they are known.
///
/// # Errors
/// As [`plan`].
pub fn choose_chunk(
    input: &PlanInput<'_>,
    kind: ScheduleKind,
    rates: Option<ChunkRates>,
) -> Result<ChunkChoice, Error> {
    let choice = |chunk: usize, reason| {
        // Never zero: sizes are powers of two.
        ChunkChoice { chunk: NonZeroUsize::new(chunk).unwrap_or(NonZeroUsize::MIN), reason }
    };
    if kind.with_chunk(DEFAULT_CHUNK).chunk() == Chunk::Whole {
        return Ok(choice(DEFAULT_CHUNK.get(), ChunkReason::WholePrompt));
    }
    let (fastest, reason) = match rates {
        Some(rates) => {
            let enough = |&&size: &&usize| rates.packing_share(size) <= PACKING_SHARE;
            let largest = FOR_SPEED[FOR_SPEED.len() - 1];
            (FOR_SPEED.iter().find(enough).copied().unwrap_or(largest), ChunkReason::Speed)
        }
        None => (DEFAULT_CHUNK.get(), ChunkReason::Default),
    };
    let Some(limit) = input.config.memory_limit else { return Ok(choice(fastest, reason)) };
    let mut size = fastest;
    loop {
        let schedule = kind.with_chunk(choice(size, reason).chunk);
        let config = RunConfig { schedule, ..input.config.clone() };
        let fits = plan(&PlanInput { config: &config, ..*input })?.peak_bytes() <= limit;
        match (fits, size == fastest) {
            (true, true) => return Ok(choice(size, reason)),
            (true, false) => return Ok(choice(size, ChunkReason::Memory)),
            (false, _) if size <= SMALLEST_CHUNK => return Ok(choice(size, ChunkReason::NoneFits)),
            (false, _) => size /= 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::suggest::tests::{peak, with_input};

    const RATES: ChunkRates = ChunkRates { product_flops: 2e11, packed_weights: 5e9 };

    fn chosen(
        kind: ScheduleKind,
        rates: Option<ChunkRates>,
        memory_limit: Option<u64>,
    ) -> (usize, ChunkReason) {
        let config = RunConfig { memory_limit, ..RunConfig::default() };
        let choice = with_input(&config, 65_536, |input| choose_chunk(input, kind, rates).unwrap());
        (choice.chunk.get(), choice.reason)
    }

    #[test]
    fn speed_asks_for_the_smallest_that_is_fast_enough() {
        use ScheduleKind::{PostPrefill, Tide};
        let of = |packed_weights| chosen(Tide, Some(ChunkRates { packed_weights, ..RATES }), None);
        // 2e11 / (2 C 5e9) = 20 / C: 2 % at 1,000 tokens.
        assert_eq!(of(5e9), (1024, ChunkReason::Speed));
        assert_eq!(of(2e9), (4096, ChunkReason::Speed));
        assert_eq!(of(f64::INFINITY), (512, ChunkReason::Speed));
        assert_eq!(of(1e6), (8192, ChunkReason::Speed));
        assert_eq!(chosen(Tide, None, None), (2048, ChunkReason::Default));
        assert_eq!(chosen(PostPrefill, Some(RATES), None).1, ChunkReason::WholePrompt);
    }

    #[test]
    fn a_limit_takes_the_largest_that_fits() {
        let needs = |chunk: usize| {
            let schedule = ScheduleKind::Tide.with_chunk(NonZeroUsize::new(chunk).unwrap());
            let config = RunConfig { schedule, ..RunConfig::default() };
            with_input(&config, 65_536, |input| peak(input, &config))
        };
        let of = |limit| chosen(ScheduleKind::Tide, Some(RATES), Some(limit));
        assert_eq!(of(needs(1024)), (1024, ChunkReason::Speed));
        assert_eq!(of(needs(1024) - 1), (512, ChunkReason::Memory));
        assert_eq!(of(needs(256)), (256, ChunkReason::Memory));
        assert_eq!(of(needs(32)), (32, ChunkReason::Memory));
        assert_eq!(of(needs(32) - 1), (32, ChunkReason::NoneFits));
        assert_eq!(chosen(ScheduleKind::Tide, None, Some(needs(2048))).1, ChunkReason::Default);
    }
}
