//! The selector as a product of values, its presets and its mandatory set.

use super::{CustomScorer, SelectError};

/// Which positions of a layer survive: a product of independent values, plus a
/// mandatory set that is kept whatever the scores say.
///
/// Budgets count everything: K_l positions per KV head and layer, sinks, recent
/// tokens and observation window included. A prompt of S <= K_l tokens is left
/// as it is, by every selector.
///
/// # Text form
/// A scorer or preset, then modifiers, joined by `+`:
///
/// ```
/// use tidekv::select::Selector;
/// let selector: Selector = "observation(window=16,kernel=5,pool=avg,group=max)+sinks(4)".parse()?;
/// assert_eq!(selector.to_string().parse(), Ok(selector));
/// assert_eq!("snapkv".parse::<Selector>()?.to_string(), "snapkv");
/// # Ok::<(), tidekv::select::SelectError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    /// What a position is worth.
    pub scorer: Scorer,
    /// How the total budget is split over layers.
    pub layers: LayerBudget,
    /// How a layer's budget is split over its KV heads.
    pub heads: HeadBudget,
    /// What is kept or evicted as one piece.
    pub unit: Granularity,
    /// Tokens at the prompt's start that are always kept.
    pub sinks: usize,
    /// Tokens at the prompt's end that are always kept. An observation window is
    /// always kept too; the larger of both counts.
    pub recent: usize,
}

/// What a position is worth.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scorer {
    /// Attention of the prompt's last queries (SnapKV).
    Observation(Observation),
    /// The later the better; needs no scores (StreamingLLM, recent window).
    Recency,
    /// Every position is kept, whatever the budget.
    KeepAll,
    /// Keys and values, by a scorer from outside this crate; see
    /// [`Scorer::custom`].
    Custom(CustomScorer),
}

/// Scores from the attention probabilities of the prompt's last W queries over
/// all S keys, causally masked, averaged over the W rows.
/// Source: paper equations (4)-(8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation {
    /// W, number of queries observed; their positions are kept.
    pub window: usize,
    /// Width of the pooling along positions, odd; 1 means no pooling.
    pub kernel: usize,
    /// How neighbours are combined.
    pub pool: Pool,
    /// How the G query heads of a KV head are combined.
    pub group: GroupReduce,
    /// Which of the two comes first.
    pub order: PoolOrder,
}

/// Pooling along positions, stride 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pool {
    /// Mean; zeros beyond both ends and the divisor always the kernel width, so
    /// the ends of the prefix are damped.
    Avg,
    /// Maximum; nothing beyond both ends.
    Max,
}

/// Combination of the scores of the G query heads that share a KV head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupReduce {
    /// Sum over heads divided by G.
    Mean,
    /// Maximum over heads.
    Max,
    /// Sum over heads.
    Sum,
}

/// Order of group reduction and pooling. Average pooling commutes with mean and
/// sum; maximum pooling does not, and on random data the two orders share only
/// 66-88 % of the kept set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolOrder {
    /// Reduce over the group, then pool one row per KV head.
    GroupThenPool,
    /// Pool one row per query head, then reduce over the group.
    PoolThenGroup,
}

/// Split of the budget over layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayerBudget {
    /// K_l = min(K, S) in every layer.
    Uniform,
}

/// Split of a layer's budget over its KV heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeadBudget {
    /// Every KV head keeps its own K_l positions.
    PerHead,
}

/// What is kept or evicted as one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Granularity {
    /// Single positions.
    Token,
}

/// A published method under its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preset {
    /// Name on the command line and in reports.
    pub name: &'static str,
    /// One line for help texts.
    pub summary: &'static str,
    /// The value.
    pub selector: Selector,
}

/// Every preset.
pub static PRESETS: [Preset; 5] = [
    Preset {
        name: "snapkv",
        summary: "attention of the last 32 queries, max pool 7, group mean before pooling \
                  (the published SnapKV configuration)",
        selector: Selector::new(Scorer::Observation(Observation::SNAPKV)),
    },
    Preset {
        name: "snapkv-kvpress",
        summary: "attention of the last 64 queries, average pool 5 (SnapKV as in kvpress)",
        selector: Selector::new(Scorer::Observation(Observation::SNAPKV_KVPRESS)),
    },
    Preset {
        name: "streaming",
        summary: "the first 4 tokens and the most recent ones (StreamingLLM, true positions)",
        selector: Selector::with_sinks(Scorer::Recency, 4),
    },
    Preset {
        name: "recent",
        summary: "the most recent tokens only",
        selector: Selector::new(Scorer::Recency),
    },
    Preset {
        name: "none",
        summary: "keep every token, whatever the budget",
        selector: Selector::new(Scorer::KeepAll),
    },
];

impl Observation {
    /// SnapKV's published LongBench configuration, with the group mean taken
    /// before pooling so that the cache stays at KV-head granularity.
    pub const SNAPKV: Observation = Observation {
        window: 32,
        kernel: 7,
        pool: Pool::Max,
        group: GroupReduce::Mean,
        order: PoolOrder::GroupThenPool,
    };

    /// SnapKV as kvpress runs it.
    pub const SNAPKV_KVPRESS: Observation =
        Observation { window: 64, kernel: 5, pool: Pool::Avg, ..Observation::SNAPKV };

    fn validate(&self) -> Result<(), SelectError> {
        if self.window == 0 {
            return Err(SelectError::EmptyWindow);
        }
        if self.kernel.is_multiple_of(2) {
            return Err(SelectError::EvenKernel { kernel: self.kernel });
        }
        Ok(())
    }
}

impl Selector {
    /// `scorer` with uniform layers, per-head budgets, single tokens and nothing
    /// mandatory beyond what the scorer itself needs.
    pub const fn new(scorer: Scorer) -> Self {
        Selector::with_sinks(scorer, 0)
    }

    // A constant cannot be made from parts of another: those have destructors.
    const fn with_sinks(scorer: Scorer, sinks: usize) -> Self {
        Selector {
            scorer,
            layers: LayerBudget::Uniform,
            heads: HeadBudget::PerHead,
            unit: Granularity::Token,
            sinks,
            recent: 0,
        }
    }

    /// The preset of that name.
    pub fn preset(name: &str) -> Option<&'static Selector> {
        PRESETS.iter().find(|preset| preset.name == name).map(|preset| &preset.selector)
    }

    /// Checks what does not depend on prompt or budget. Parsing and
    /// [`Selector::budgets`] do it; values written as literals can be checked
    /// early.
    ///
    /// # Errors
    /// An empty window, an even kernel, or a mandatory set without eviction.
    pub fn validate(&self) -> Result<(), SelectError> {
        let &Selector { sinks, recent, .. } = self;
        match self.scorer {
            Scorer::Observation(observation) => observation.validate(),
            Scorer::Recency | Scorer::Custom(_) => Ok(()),
            Scorer::KeepAll if sinks > 0 || recent > 0 => {
                Err(SelectError::MandatoryWithoutEviction { sinks, recent })
            }
            Scorer::KeepAll => Ok(()),
        }
    }

    /// Whether a prompt of `n_tokens` (S) is kept whole under a budget of
    /// `budget` (K_l). Decided before anything else, for every selector.
    pub fn keeps_all(&self, budget: usize, n_tokens: usize) -> bool {
        n_tokens <= budget || self.scorer == Scorer::KeepAll
    }

    /// The positions that must be kept of a prompt of `n_tokens` (S).
    pub fn mandatory(&self, n_tokens: usize) -> Mandatory {
        let tail_start = n_tokens - self.mandatory_tail().min(n_tokens);
        Mandatory { sinks_end: self.sinks.min(tail_start), tail_start, n_tokens }
    }

    /// Length of the mandatory tail of a long prompt.
    pub(super) fn mandatory_tail(&self) -> usize {
        match self.scorer {
            Scorer::Observation(observation) => observation.window.max(self.recent),
            // A recency window of nothing would keep the sinks only.
            Scorer::Recency => self.recent.max(1),
            Scorer::KeepAll | Scorer::Custom(_) => self.recent,
        }
    }
}

/// The mandatory positions of one prompt: `0..sinks_end` and
/// `tail_start..n_tokens`, disjoint even where sinks and window overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mandatory {
    /// End of the sinks, at most `tail_start`.
    pub sinks_end: usize,
    /// Start of the tail, at most `n_tokens`.
    pub tail_start: usize,
    /// S.
    pub n_tokens: usize,
}

impl Mandatory {
    /// Number of mandatory positions.
    pub fn count(&self) -> usize {
        self.sinks_end + (self.n_tokens - self.tail_start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_valid_and_named_once() {
        for preset in &PRESETS {
            assert_eq!(preset.selector.validate(), Ok(()), "{}", preset.name);
            let named: Vec<_> = PRESETS.iter().filter(|p| p.name == preset.name).collect();
            assert_eq!(named.len(), 1, "{}", preset.name);
            let same: Vec<_> = PRESETS.iter().filter(|p| p.selector == preset.selector).collect();
            assert_eq!(same.len(), 1, "{}", preset.name);
        }
    }

    #[test]
    fn impossible_windows_and_kernels_are_refused() {
        let with = |edit: fn(&mut Observation)| {
            let mut observation = Observation::SNAPKV;
            edit(&mut observation);
            Selector::new(Scorer::Observation(observation)).validate()
        };
        assert_eq!(with(|o| o.window = 0), Err(SelectError::EmptyWindow));
        for kernel in [0, 2, 8] {
            let mut observation = Observation::SNAPKV;
            observation.kernel = kernel;
            let selector = Selector::new(Scorer::Observation(observation));
            assert_eq!(selector.validate(), Err(SelectError::EvenKernel { kernel }));
        }
        assert_eq!(with(|o| o.kernel = 1), Ok(()));
    }

    #[test]
    fn keep_all_takes_no_mandatory_set() {
        let selector = Selector { sinks: 4, ..Selector::new(Scorer::KeepAll) };
        let error = SelectError::MandatoryWithoutEviction { sinks: 4, recent: 0 };
        assert_eq!(selector.validate(), Err(error));
    }

    #[test]
    fn overlapping_sinks_and_window_are_counted_once() {
        let selector =
            Selector { sinks: 10, ..Selector::new(Scorer::Observation(Observation::SNAPKV)) };
        let at = |n_tokens| {
            let m = selector.mandatory(n_tokens);
            (m.sinks_end, m.tail_start, m.count())
        };
        assert_eq!(at(100), (10, 68, 42));
        assert_eq!(at(42), (10, 10, 42));
        assert_eq!(at(36), (4, 4, 36));
        assert_eq!(at(20), (0, 0, 20));
        assert_eq!(at(0), (0, 0, 0));
    }

    #[test]
    fn the_longer_of_window_and_recent_is_kept() {
        let selector =
            Selector { recent: 40, ..Selector::new(Scorer::Observation(Observation::SNAPKV)) };
        assert_eq!(selector.mandatory(100).tail_start, 60);
    }
}
