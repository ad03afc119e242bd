//! When a plan does not fit: the refusal, and what would fit instead.

use super::{Plan, PlanInput, plan};
use crate::config::RunConfig;
use crate::element::Element;
use crate::error::Error;
use crate::model::Shape;
use crate::schedule::{Chunk, ScheduleKind};
use std::fmt;
use std::num::NonZeroUsize;

/// A run that was refused because its plan passes the limit.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// The plan.
    pub plan: Plan,
    /// The limit in bytes.
    pub limit: u64,
    /// Largest prompt that fits with the same settings, in tokens; 0 if none.
    pub largest_prompt: usize,
    /// Changes that would make it fit, each on its own.
    pub suggestions: Vec<String>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal { plan, limit, largest_prompt, suggestions } = self;
        let (tokens, peak) = (plan.n_tokens, plan.peak_bytes());
        write!(
            f,
            "a prompt of {tokens} tokens needs {} at its peak, the limit is {}; ",
            Bytes(peak),
            Bytes(*limit)
        )?;
        match largest_prompt {
            0 => f.write_str("no prompt fits with these settings")?,
            n => write!(f, "up to {n} tokens fit with these settings")?,
        }
        for suggestion in suggestions {
            write!(f, "; {suggestion}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}

/// A number of bytes, shown with the largest unit that leaves a readable value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        let unit = UNITS.into_iter().find(|(_, size)| self.0 >= *size);
        let text = match unit {
            Some((name, size)) => format!("{:.2} {name}", self.0 as f64 / size as f64),
            None => format!("{} B", self.0),
        };
        f.pad(&text)
    }
}

/// Largest prompt whose plan stays within `limit`, at most the context; 0 if
/// none fits.
pub fn largest_prompt(input: &PlanInput<'_>, limit: u64) -> usize {
    let fits = |n_tokens: usize| {
        plan(&PlanInput { n_tokens, ..*input }).is_ok_and(|plan| plan.peak_bytes() <= limit)
    };
    // The plan grows with the prompt, so bisection finds the border.
    let (mut fitting, mut failing) = (0, input.shape.context.saturating_add(1));
    while failing - fitting > 1 {
        let middle = fitting + (failing - fitting) / 2;
        match fits(middle) {
            true => fitting = middle,
            false => failing = middle,
        }
    }
    fitting
}

/// Plans a run and refuses it, with what would fit, if it passes the limit of
/// its settings.
///
/// # Errors
/// [`Error::Refused`], or as [`plan`].
pub fn refuse_unless_fits(input: &PlanInput<'_>) -> Result<Plan, Error> {
    let plan = plan(input)?;
    match input.config.memory_limit {
        Some(limit) if plan.peak_bytes() > limit => Err(Error::Refused(Box::new(Refusal {
            plan,
            limit,
            largest_prompt: largest_prompt(input, limit),
            suggestions: suggestions(input, limit),
        }))),
        _ => Ok(plan),
    }
}

/// Most changes that are suggested.
const MOST: usize = 3;

/// Up to three single changes of the settings under which the prompt fits.
pub fn suggestions(input: &PlanInput<'_>, limit: u64) -> Vec<String> {
    let peak_of = |config: &RunConfig| {
        plan(&PlanInput { config, ..*input }).ok().map(|plan| plan.peak_bytes())
    };
    changes(input)
        .into_iter()
        .filter_map(|(change, config)| Some((change, peak_of(&config)?)))
        .filter(|(_, peak)| *peak <= limit)
        .map(|(change, peak)| format!("{change} would need {}", Bytes(peak)))
        .take(MOST)
        .collect()
}

/// Single changes worth trying, mildest first, then all of them at once.
fn changes(input: &PlanInput<'_>) -> Vec<(String, RunConfig)> {
    let PlanInput { config, .. } = *input;
    let mut changes = Vec::new();
    let chunk = match config.schedule.chunk() {
        Chunk::Tokens(chunk) => chunk,
        Chunk::Whole => crate::config::DEFAULT_CHUNK,
    };
    let tide = |chunk| ScheduleKind::Tide.with_chunk(chunk);
    if config.schedule != tide(chunk) {
        let change = format!("--schedule tide --chunk {chunk}");
        changes.push((change, RunConfig { schedule: tide(chunk), ..config.clone() }));
    }
    for smaller in [1024, 512, 256, 128].into_iter().filter_map(NonZeroUsize::new) {
        if smaller < chunk {
            let change = format!("--schedule tide --chunk {smaller}");
            changes.push((change, RunConfig { schedule: tide(smaller), ..config.clone() }));
        }
    }
    if config.kv == Element::F32 || config.bridge == Element::F32 {
        let change = "--precision auto".to_owned();
        let halved = RunConfig { kv: Element::Bf16, bridge: Element::Bf16, ..config.clone() };
        changes.push((change, halved));
    }
    for budget in [2048, 1024, 512, 256] {
        if budget < config.budget {
            changes.push((format!("--budget {budget}"), RunConfig { budget, ..config.clone() }));
        }
    }
    if config.max_new_tokens > 32 {
        let fewer = RunConfig { max_new_tokens: 32, ..config.clone() };
        changes.push(("--max-tokens 32".to_owned(), fewer));
    }
    let smallest = RunConfig {
        schedule: tide(NonZeroUsize::MIN.saturating_add(127)),
        budget: config.budget.min(512),
        max_new_tokens: config.max_new_tokens.min(32),
        ..config.clone()
    };
    let all = "--schedule tide --chunk 128 --budget 512 --max-tokens 32 together".to_owned();
    changes.push((all, smallest));
    let shape: &Shape = input.shape;
    changes.retain(|(_, config)| config.selections(shape, input.n_tokens).is_ok());
    changes
}
