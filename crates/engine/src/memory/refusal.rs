//! When a plan does not fit: the refusal, with what would fit instead.

use super::suggest::{Smaller, smallest, suggestions};
use super::{Plan, PlanInput, plan};
use crate::error::Error;
use crate::report::counted;
use std::fmt;

/// A run that was refused because its plan passes the limit.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// The plan.
    pub plan: Plan,
    /// The limit in bytes.
    pub limit: u64,
    /// Largest prompt that fits alone with the same settings, in tokens; 0 if none.
    pub largest_prompt: usize,
    /// So many of the prompts fit at a time with the same settings, in their order;
    /// see [`prompts_at_a_time`].
    pub prompts_at_a_time: usize,
    /// Changes that would make it fit, each by itself; see [`suggestions`].
    pub suggestions: Vec<String>,
    /// The floor of what is suggested, and what it needs: it fits exactly where there
    /// are suggestions.
    pub smallest: Smaller,
}

impl Refusal {
    /// The refusal of a plan that passes `limit`, with what would fit.
    ///
    /// # Errors
    /// As [`plan`].
    pub fn new(input: &PlanInput<'_>, plan: Plan, limit: u64) -> Result<Self, Error> {
        Ok(Refusal {
            largest_prompt: largest_prompt(input, limit),
            prompts_at_a_time: prompts_at_a_time(input, limit),
            suggestions: suggestions(input, limit),
            smallest: smallest(input)?,
            plan,
            limit,
        })
    }

    /// One sentence for each thing that can be done, or one that says why there is
    /// none.
    pub fn advice(&self) -> Vec<String> {
        let mut advice = Vec::from_iter(self.fewer_prompts());
        advice.push(match self.largest_prompt {
            0 => "no prompt fits with these settings".to_owned(),
            n => {
                let tokens = counted(n, "token");
                format!("one prompt of up to {tokens} fits with these settings")
            }
        });
        advice.extend(self.changes());
        advice
    }

    /// How many prompts to read at a time, if there are several.
    pub fn fewer_prompts(&self) -> Option<String> {
        match (self.plan.n_prompts, self.prompts_at_a_time) {
            (1, _) => None,
            (_, 0) => Some("the longest of these prompts does not fit even alone".to_owned()),
            (_, 1) => Some("these prompts fit one at a time".to_owned()),
            (_, n) => Some(format!("these prompts fit {n} at a time, in this order")),
        }
    }

    /// The [suggestions](Refusal::suggestions), or one sentence that says why
    /// there is none.
    pub fn changes(&self) -> Vec<String> {
        if !self.suggestions.is_empty() {
            return self.suggestions.clone();
        }
        let Smaller { flags, peak_bytes } = &self.smallest;
        let (floor, _) = Bytes::told_apart(*peak_bytes, self.limit);
        let prompts = match self.plan.n_prompts {
            1 => "a prompt of this length".to_owned(),
            n => format!("a batch of these {n} prompts"),
        };
        vec![match flags.as_str() {
            "" => format!("no smaller settings are known for {prompts}"),
            _ => format!(
                "{prompts} fits with none of the settings that were tried: the smallest plan, with \
                 {flags}, needs {floor}; smaller values than these are not suggested"
            ),
        }]
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (peak, limit) = Bytes::told_apart(self.plan.peak_bytes(), self.limit);
        let tokens = counted(self.plan.n_tokens, "token");
        match self.plan.n_prompts {
            1 => write!(f, "a prompt of {tokens} needs")?,
            n => write!(f, "a batch of {n} prompts with {tokens} in all needs")?,
        }
        write!(f, " {peak} at its peak, the limit is {limit}")?;
        self.advice().iter().try_for_each(|advice| write!(f, "; {advice}"))
    }
}

impl std::error::Error for Refusal {}

/// A number of bytes, shown with the largest unit that leaves a readable value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Two numbers of bytes as a reader can compare them: rounded, or to the byte
    /// where both would round to the same text and are not the same.
    pub fn told_apart(a: u64, b: u64) -> (String, String) {
        let (short_a, short_b) = (Bytes(a).to_string(), Bytes(b).to_string());
        match a != b && short_a == short_b {
            true => (format!("{a} bytes"), format!("{b} bytes")),
            false => (short_a, short_b),
        }
    }
}

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
    // The plan grows with the prompt.
    largest(input.shape.context, |n_tokens| {
        fits(&PlanInput { n_tokens: &[n_tokens], ..*input }, limit)
    })
}

/// The largest number up to `most` that fits, where all below one that fits do; 0
/// if none does.
fn largest(most: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut fitting, mut failing) = (0, most.saturating_add(1));
    while failing - fitting > 1 {
        let middle = fitting + (failing - fitting) / 2;
        match fits(middle) {
            true => fitting = middle,
            false => failing = middle,
        }
    }
    fitting
}

/// The largest number so that the input's prompts fit within `limit` bytes when
/// they are read that many at a time, in their order: the first n, the next n and
/// so on. 0 if one does not even fit alone.
pub fn prompts_at_a_time(input: &PlanInput<'_>, limit: u64) -> usize {
    let all = input.n_tokens;
    let fit = |n_tokens: &[usize]| fits(&PlanInput { n_tokens, ..*input }, limit);
    // A prompt more in a group never makes it fit.
    let most = largest(all.len(), |n| fit(&all[..n]));
    // The longest of a group that did not fit is likely to crowd the next one.
    let mut crowding = 0;
    let mut all_fit = |n: usize| {
        let group = |at: usize| at / n * n..(at / n * n + n).min(all.len());
        let others = (0..all.len()).step_by(n).filter(|&at| !group(at).contains(&crowding));
        match std::iter::once(crowding).chain(others).map(group).find(|of| !fit(&all[of.clone()])) {
            None => true,
            Some(of) => {
                crowding = of.max_by_key(|&at| all[at]).unwrap_or(crowding);
                false
            }
        }
    };
    // Other groups meet other neighbours, so a smaller number need not fit.
    (1..=most).rev().find(|&n| all_fit(n)).unwrap_or(0)
}

fn fits(input: &PlanInput<'_>, limit: u64) -> bool {
    plan(input).is_ok_and(|plan| plan.peak_bytes() <= limit)
}

/// Plans a run and refuses it, with what would fit, if it passes the limit of
/// its settings.
///
/// # Errors
/// [`Error::Refused`], or as [`plan`].
pub fn refuse_unless_fits(input: &PlanInput<'_>) -> Result<Plan, Error> {
    let plan = plan(input)?;
    match input.config.memory_limit {
        Some(limit) if plan.peak_bytes() > limit => {
            Err(Error::Refused(Box::new(Refusal::new(input, plan, limit)?)))
        }
        _ => Ok(plan),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_of_unequal_numbers_become_bytes() {
        let gib = 1 << 30;
        let text = |a, b| {
            let (a, b) = Bytes::told_apart(a, b);
            format!("{a} | {b}")
        };
        assert_eq!(text(gib, 2 * gib), "1.00 GiB | 2.00 GiB");
        assert_eq!(text(gib + 1, gib), "1073741825 bytes | 1073741824 bytes");
        assert_eq!(text(gib, gib), "1.00 GiB | 1.00 GiB");
    }
}
