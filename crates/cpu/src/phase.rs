//! How long the verbs of the backend have taken.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What the time of a run is spent on: the verbs of the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Token embeddings.
    Embed,
    /// Packing of a layer's weights, where they are kept; else it is part of the products.
    Pack,
    /// Norm, projections to queries, keys and values, rotation, and appending to the active cache.
    Qkv,
    /// Attention with its output projection.
    Attend,
    /// Norm and MLP.
    Mlp,
    /// Both passes of scoring at a layer's end.
    Score,
    /// Copying what is kept.
    Gather,
    /// Logits of prompt rows.
    Head,
    /// Generated tokens.
    Decode,
}

impl Phase {
    /// Every phase, in the order of a run.
    pub const ALL: [Phase; 9] = [
        Phase::Embed,
        Phase::Pack,
        Phase::Qkv,
        Phase::Attend,
        Phase::Mlp,
        Phase::Score,
        Phase::Gather,
        Phase::Head,
        Phase::Decode,
    ];

    /// The name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Embed => "embed",
            Phase::Pack => "pack",
            Phase::Qkv => "qkv",
            Phase::Attend => "attend",
            Phase::Mlp => "mlp",
            Phase::Score => "score",
            Phase::Gather => "gather",
            Phase::Head => "head",
            Phase::Decode => "decode",
        }
    }
}

/// Wall time of every phase since the backend was started; of two, the difference is what lies
/// between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PhaseTimes([Duration; Phase::ALL.len()]);

impl PhaseTimes {
    /// Time spent in `phase`.
    pub fn of(&self, phase: Phase) -> Duration {
        self.0[phase as usize]
    }

    /// What has been added since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &PhaseTimes) -> PhaseTimes {
        PhaseTimes(Phase::ALL.map(|phase| self.of(phase).saturating_sub(earlier.of(phase))))
    }
}

/// The clocks, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Clocks([AtomicU64; Phase::ALL.len()]);

impl Clocks {
    /// Does `work` on the clock of `phase`.
    pub(crate) fn time<R>(&self, phase: Phase, work: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = work();
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.0[phase as usize].fetch_add(nanos, Ordering::Relaxed);
        result
    }

    pub(crate) fn read(&self) -> PhaseTimes {
        let nanos = |phase: Phase| self.0[phase as usize].load(Ordering::Relaxed);
        PhaseTimes(Phase::ALL.map(|phase| Duration::from_nanos(nanos(phase))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_has_its_own_clock() {
        let clocks = Clocks::default();
        let pause = Duration::from_millis(2);
        assert_eq!(clocks.time(Phase::Mlp, || 7), 7);
        let before = clocks.read();
        clocks.time(Phase::Qkv, || std::thread::sleep(pause));
        let between = clocks.read().since(&before);
        assert!(between.of(Phase::Qkv) >= pause);
        for phase in Phase::ALL {
            assert!(phase == Phase::Qkv || between.of(phase).is_zero(), "{}", phase.name());
        }
    }
}
