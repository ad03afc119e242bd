//! Which other settings would fit: every knob alone, then combinations.

use super::{Bytes, PlanInput, plan};
use crate::config::{DEFAULT_CHUNK, RunConfig};
use crate::element::Element;
use crate::error::Error;
use crate::schedule::{Chunk, Schedule, ScheduleKind, longest};
use std::fmt;
use std::num::NonZeroUsize;

/// Most changes that are suggested.
const MOST: usize = 3;
/// Smallest chunk worth suggesting or choosing, in tokens: below it the weights are
/// read for hardly any work.
pub(super) const SMALLEST_CHUNK: usize = 32;
/// Smallest budget worth suggesting, in positions.
const SMALLEST_BUDGET: usize = 64;
/// Smallest answer worth suggesting, in tokens.
const SMALLEST_ANSWER: usize = 16;
/// Smallest score block worth suggesting, in keys.
const SMALLEST_SCORE_BLOCK: usize = 64;

/// Settings that need less memory than those asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Smaller {
    /// What to add to the command line; empty where nothing can be made smaller.
    pub flags: String,
    /// Bytes at the peak of the plan under them.
    pub peak_bytes: u64,
}

impl fmt::Display for Smaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} would need {}", self.flags, Bytes(self.peak_bytes))
    }
}

/// Up to three changes of the settings under which the prompts fit, each checked
/// by planning it. No two change the same knobs, and none changes a knob, or
/// changes it further, than it has to. One knob comes before several, and those
/// that change no result before those that do.
pub fn suggestions(input: &PlanInput<'_>, limit: u64) -> Vec<String> {
    let search = Search::new(input, limit);
    let all = search.all();
    if !search.fits(&search.harshest(all)) {
        return Vec::new();
    }
    let mut subsets: Vec<u32> = (1..=all).collect();
    subsets.sort_by_key(|subset| (subset.count_ones(), *subset));
    subsets
        .into_iter()
        .filter_map(|subset| search.describe(&search.mildest(subset)?))
        .map(|smaller| smaller.to_string())
        .take(MOST)
        .collect()
}

/// The settings that need least for these prompts: every knob that makes a
/// difference at its smallest sensible value.
///
/// # Errors
/// As [`plan`], where not even the settings asked for can be planned.
pub fn smallest(input: &PlanInput<'_>) -> Result<Smaller, Error> {
    let search = Search::new(input, u64::MAX);
    let mut levels = search.harshest(search.all());
    let least = search.peak(&levels);
    for knob in (0..levels.len()).rev() {
        let harshest = std::mem::take(&mut levels[knob]);
        if search.peak(&levels) != least {
            levels[knob] = harshest;
        }
    }
    match search.describe(&levels) {
        Some(smaller) => Ok(smaller),
        None => Ok(Smaller { flags: String::new(), peak_bytes: plan(input)?.peak_bytes() }),
    }
}

/// One setting with another value.
#[derive(Debug, Clone, Copy)]
enum Change {
    Schedule(Schedule),
    Chunk(NonZeroUsize),
    ScoreBlock(NonZeroUsize),
    Bridge(Element),
    Kv(Element),
    Budget(usize),
    Answer(usize),
}

impl Change {
    fn apply(self, config: &mut RunConfig) {
        match self {
            Change::Schedule(schedule) => config.schedule = schedule,
            Change::Chunk(size) => match &mut config.schedule {
                Schedule::LayerMajor { chunk: Chunk::Tokens(chunk), .. }
                | Schedule::ChunkMajor { chunk: Chunk::Tokens(chunk), .. } => *chunk = size,
                // The whole prompt at once has no chunks; only another schedule has.
                Schedule::LayerMajor { .. } | Schedule::ChunkMajor { .. } => {}
            },
            Change::ScoreBlock(keys) => config.score_block = keys,
            Change::Bridge(element) => config.bridge = element,
            Change::Kv(element) => config.kv = element,
            Change::Budget(budget) => config.budget = budget,
            Change::Answer(tokens) => config.max_new_tokens = tokens,
        }
    }

    /// The flag; `--chunk` comes with its own change.
    fn flag(self) -> String {
        match self {
            Change::Schedule(_) => format!("--schedule {}", ScheduleKind::Tide.name()),
            Change::Chunk(size) => format!("--chunk {size}"),
            Change::ScoreBlock(keys) => format!("--score-block {keys}"),
            Change::Bridge(element) => format!("--bridge-type {element}"),
            Change::Kv(element) => format!("--kv-type {element}"),
            Change::Budget(budget) => format!("--budget {budget}"),
            Change::Answer(tokens) => format!("--max-tokens {tokens}"),
        }
    }
}

/// The powers of two below `from` down to `smallest`.
fn halvings(from: usize, smallest: usize) -> impl Iterator<Item = usize> {
    let first = from.checked_next_power_of_two().unwrap_or(1 << (usize::BITS - 1)) / 2;
    std::iter::successors(Some(first), |&value| Some(value / 2))
        .take_while(move |&value| value >= smallest)
}

/// The other values of every knob, mildest first. Knobs that change no result
/// come first, then storage, then what the answer can draw on, then its length.
fn knobs(input: &PlanInput<'_>) -> Vec<Vec<Change>> {
    let PlanInput { config, shape, n_tokens, .. } = *input;
    let longest = longest(n_tokens);
    let chunk = match config.schedule.chunk() {
        Chunk::Tokens(chunk) => chunk,
        Chunk::Whole => DEFAULT_CHUNK,
    };
    let tide = ScheduleKind::Tide.with_chunk(chunk);
    let with_budget = |budget| RunConfig { schedule: tide, budget, ..config.clone() };
    let sizes = |from: NonZeroUsize, smallest| {
        halvings(from.get().min(longest), smallest).filter_map(NonZeroUsize::new)
    };
    let narrow = |element| (element == Element::F32).then_some(Element::Bf16).into_iter();
    let knobs = [
        (config.schedule != tide).then_some(Change::Schedule(tide)).into_iter().collect(),
        sizes(chunk, SMALLEST_CHUNK).map(Change::Chunk).collect(),
        sizes(config.score_block, SMALLEST_SCORE_BLOCK).map(Change::ScoreBlock).collect(),
        narrow(config.bridge).map(Change::Bridge).collect(),
        narrow(config.kv).map(Change::Kv).collect(),
        halvings(config.budget.min(longest), SMALLEST_BUDGET)
            // What must be kept has to have room.
            .filter(|&budget| with_budget(budget).batch_selections(shape, n_tokens).is_ok())
            .map(Change::Budget)
            .collect(),
        halvings(config.max_new_tokens, SMALLEST_ANSWER).map(Change::Answer).collect(),
    ];
    knobs.into_iter().filter(|values: &Vec<Change>| !values.is_empty()).collect()
}

/// A search over the knobs. A point is one level per knob: 0 for the value asked
/// for, l for the l-th other one.
struct Search<'a> {
    input: &'a PlanInput<'a>,
    limit: u64,
    knobs: Vec<Vec<Change>>,
}

impl<'a> Search<'a> {
    fn new(input: &'a PlanInput<'a>, limit: u64) -> Self {
        Search { input, limit, knobs: knobs(input) }
    }

    /// The set of all knobs; bit k stands for knob k.
    fn all(&self) -> u32 {
        (1 << self.knobs.len()) - 1
    }

    /// The knobs of a set at the given level, or at their last before it.
    fn at(&self, subset: u32, level: usize) -> Vec<usize> {
        let of = |(knob, values): (usize, &Vec<Change>)| match subset >> knob & 1 {
            0 => 0,
            _ => level.min(values.len()),
        };
        self.knobs.iter().enumerate().map(of).collect()
    }

    fn harshest(&self, subset: u32) -> Vec<usize> {
        self.at(subset, usize::MAX)
    }

    fn changes(&self, levels: &[usize]) -> impl Iterator<Item = Change> {
        let chosen = self.knobs.iter().zip(levels);
        chosen.filter_map(|(values, level)| values.get(level.checked_sub(1)?).copied())
    }

    fn peak(&self, levels: &[usize]) -> Option<u64> {
        let mut config = self.input.config.clone();
        self.changes(levels).for_each(|change| change.apply(&mut config));
        let planned = plan(&PlanInput { config: &config, ..*self.input });
        planned.ok().map(|plan| plan.peak_bytes())
    }

    fn fits(&self, levels: &[usize]) -> bool {
        self.peak(levels).is_some_and(|peak| peak <= self.limit)
    }

    /// The mildest point at which all knobs of the set are needed: all turned alike
    /// until the plan fits, then each turned back, the harshest knob first. `None`
    /// if nothing fits, or one of them is not needed.
    fn mildest(&self, subset: u32) -> Option<Vec<usize>> {
        if !self.fits(&self.harshest(subset)) {
            return None;
        }
        let most = self.knobs.iter().map(Vec::len).max()?;
        let fitting = (1..=most).map(|level| self.at(subset, level));
        let mut levels = fitting.into_iter().find(|levels| self.fits(levels))?;
        for knob in (0..levels.len()).rev().filter(|knob| subset >> knob & 1 == 1) {
            loop {
                let mut milder = levels.clone();
                milder[knob] -= 1;
                match self.fits(&milder) {
                    true if milder[knob] == 0 => return None,
                    true => levels = milder,
                    false => break,
                }
            }
        }
        Some(levels)
    }

    fn describe(&self, levels: &[usize]) -> Option<Smaller> {
        let changes: Vec<Change> = self.changes(levels).collect();
        let mut flags: Vec<String> = changes.iter().map(|change| change.flag()).collect();
        let chunk_is_named = changes.iter().any(|change| matches!(change, Change::Chunk(_)));
        if let [Change::Schedule(tide), ..] = changes[..]
            && let (Chunk::Tokens(chunk), false) = (tide.chunk(), chunk_is_named)
        {
            flags.insert(1, Change::Chunk(chunk).flag());
        }
        Some(Smaller { flags: flags.join(" "), peak_bytes: self.peak(levels)? })
    }
}

#[cfg(test)]
pub(super) mod tests;
