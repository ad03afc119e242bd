//! A run in a few lines, for people.

use crate::output::counted;
use crate::progress::seconds;
use tidekv::FinishReason;
use tidekv::memory::{Bytes, system_memory};
use tidekv::report::{ComponentBytes, PeakAt, RunReport};
use tidekv::text::Tokenizer;

/// What an answer may not pass.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Most tokens of prompt and answer together.
    pub context: usize,
    /// Most tokens of the answer.
    pub max_tokens: usize,
}

/// What a person wants to know about the run of one prompt: speed, memory, what
/// was kept.
pub fn summary(report: &RunReport, bounds: Bounds) -> String {
    format!(
        "\n  {} read at {:.0} tokens/s, first token after {}\n  {}\n  {}\n  {}\n",
        counted(report.prompt_tokens, "token"),
        speed(report.prompt_tokens, report),
        seconds(report.ttft_s),
        generated(report, bounds),
        memory(report),
        kept(report),
    )
}

/// The part of [`summary`] that each of several prompts has for itself.
pub fn answer_summary(name: &str, report: &RunReport, bounds: Bounds) -> String {
    format!(
        "\n  {name}: {}, first token after {}\n  {}\n  {}\n",
        counted(report.prompt_tokens, "token"),
        seconds(report.ttft_s),
        generated(report, bounds),
        kept(report),
    )
}

/// The part of [`summary`] that several prompts have in common; `report` is that of
/// any of them. `decoded` tokens took these seconds.
pub fn batch_summary(
    n_prompts: usize,
    n_tokens: usize,
    report: &RunReport,
    (decoded, decode_s): (usize, f64),
) -> String {
    let decode = match decoded > 0 && decode_s > 0.0 {
        true => format!(", answered at {:.1} tokens/s", decoded as f64 / decode_s),
        false => String::new(),
    };
    format!(
        "\n  {} with {} in all read at {:.0} tokens/s{decode}\n  {}\n",
        counted(n_prompts, "prompt"),
        counted(n_tokens, "token"),
        speed(n_tokens, report),
        memory(report),
    )
}

/// Tokens that were read per second.
fn speed(n_tokens: usize, report: &RunReport) -> f64 {
    n_tokens as f64 / report.prefill_s.max(1e-9)
}

/// How the answer came to be.
fn generated(report: &RunReport, bounds: Bounds) -> String {
    let decode = match report.decode_tokens_per_s > 0.0 {
        true => format!(" at {:.1} tokens/s", report.decode_tokens_per_s),
        false => String::new(),
    };
    format!(
        "{} generated{decode}, ended by {}",
        counted(report.generated_tokens, "token"),
        ended_by(report.finish_reason, report.generated_tokens, bounds)
    )
}

/// Where the memory went.
fn memory(report: &RunReport) -> String {
    let memory = &report.memory;
    format!(
        "peak {} (planned {}) during {}: {}\n  transient {}, retained cache {}",
        Bytes(memory.accounted_peak_bytes),
        Bytes(memory.planned_peak_bytes),
        reached(&memory.peak_at),
        largest(&memory.components_at_peak),
        Bytes(memory.transient_peak_bytes),
        Bytes(memory.retained_bytes),
    )
}

/// Why the answer ended: of the two lengths it may come up to, the one it did.
fn ended_by(finish_reason: &str, generated: usize, bounds: Bounds) -> String {
    match finish_reason == FinishReason::Length.name() && generated < bounds.max_tokens {
        true => format!("length: prompt and answer fill the context of {}", bounds.context),
        false => finish_reason.to_owned(),
    }
}

/// When a peak is reached, in words.
fn reached(at: &PeakAt) -> String {
    match at.layer {
        Some(layer) => format!("{} of layer {layer}", at.step),
        None => at.step.to_owned(),
    }
}

/// The components that make up the peak, largest first; the small ones as one.
fn largest(components: &ComponentBytes) -> String {
    const SHOWN: usize = 5;
    let counted =
        components.iter().filter(|(name, bytes)| **name != "weights_mapped" && **bytes > 0);
    let mut sorted: Vec<_> = counted.map(|(name, bytes)| (*name, *bytes)).collect();
    sorted.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let (shown, others) = sorted.split_at(sorted.len().min(SHOWN));
    let others: u64 = others.iter().map(|(_, bytes)| bytes).sum();
    let rest = (others > 0).then_some(("others", others));
    let parts = shown.iter().copied().chain(rest);
    parts.map(|(name, bytes)| format!("{name} {}", Bytes(bytes))).collect::<Vec<_>>().join(", ")
}

/// Kept positions: one number where all layers and heads keep as many.
fn kept(report: &RunReport) -> String {
    let counts = || report.kept.iter().flat_map(|layer| layer.per_head.iter().copied());
    let (least, most) = (counts().min().unwrap_or(0), counts().max().unwrap_or(0));
    let number = if least == most { most.to_string() } else { format!("{least} to {most}") };
    let whole = counted(report.prompt_tokens, "position");
    let layers = match report.kept.len() {
        1 => "the only layer".to_owned(),
        n => format!("each of {n} layers"),
    };
    format!("kept {number} of {whole} per head in {layers}")
}

/// Which of the prompt's last tokens selection looks from. `tail` of them are
/// the template's and the answer's opening words, not the user's.
pub fn window_line(tokenizer: &Tokenizer, prompt: &[u32], window: usize, tail: usize) -> String {
    let names = prompt[prompt.len() - tail.min(window).min(prompt.len())..].iter().map(|&id| {
        let text = tokenizer.decode(&[id]).unwrap_or_default();
        let name = if text.is_empty() { tokenizer.token(id).unwrap_or_default() } else { &text };
        format!("{name:?}")
    });
    let names = names.collect::<Vec<_>>().join(" ");
    let line = format!("  observation window: the last {}", counted(window, "token"));
    match tail {
        0 => format!("{line}, all of them from the prompt\n"),
        _ if tail < window => format!("{line}, {tail} of them the template's: {names}\n"),
        _ => format!(
            "{line}, all of them the template's: {names}\n  warning: selection does not see the \
             question; use a selector with a window above {tail}\n"
        ),
    }
}

/// A warning if mapped weights and a run together exceed what the machine has.
/// The weights do not count against the limit, but a machine that cannot hold
/// them beside the run reads them from disk again and again.
pub fn crowded(mapped: u64, run: u64) -> Option<String> {
    let installed = system_memory().installed()?;
    (mapped.saturating_add(run) > installed).then(|| {
        format!(
            "warning: weights ({}) and run ({}) together exceed the {} there are; the weights will \
             be read from disk repeatedly",
            Bytes(mapped),
            Bytes(run),
            Bytes(installed)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_context_is_told_from_a_long_answer() {
        let bounds = Bounds { context: 64, max_tokens: 4 };
        assert_eq!(ended_by("length", 4, bounds), "length");
        assert_eq!(ended_by("stop", 1, bounds), "stop");
        assert!(ended_by("length", 1, bounds).contains("the context of 64"));
    }

    #[test]
    fn small_components_are_summed() {
        let mut components = ComponentBytes::new();
        components.insert("weights_mapped", 1 << 40);
        for (name, bytes) in
            ["a", "b", "c", "d", "e", "f", "g"].into_iter().zip([3, 7, 1, 6, 5, 4, 2])
        {
            components.insert(name, bytes);
        }
        assert_eq!(largest(&components), "b 7 B, d 6 B, e 5 B, f 4 B, a 3 B, others 3 B");
        assert_eq!(largest(&ComponentBytes::new()), "");
    }

    #[test]
    fn a_machine_is_crowded_only_by_more_than_it_has() {
        assert_eq!(crowded(0, 0), None);
        if system_memory().installed().is_some() {
            assert!(crowded(u64::MAX, 1).is_some_and(|text| text.contains("from disk")));
        }
    }
}
