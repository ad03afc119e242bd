//! Two runs side by side.

use crate::output::table;
use crate::progress::seconds;
use tidekv::memory::{Bytes, Component};
use tidekv::report::RunReport;

/// What both runs needed, and what the second saved.
pub fn comparison(runs: [&RunReport; 2]) -> String {
    let row = |name: &str, cell: &dyn Fn(&RunReport) -> String| {
        std::iter::once(name.to_owned()).chain(runs.map(cell)).collect::<Vec<_>>()
    };
    let bytes = |run: &RunReport, component: Component| {
        run.memory.components_at_peak.get(component.name()).copied().unwrap_or(0)
    };
    let counted = || Component::ALL.into_iter().filter(|&c| c != Component::WeightsMapped);
    // What is below a hundredth of both peaks would only hide the rest.
    let (large, small): (Vec<_>, Vec<_>) = counted().partition(|&component| {
        runs.iter().any(|run| bytes(run, component) >= run.memory.accounted_peak_bytes / 100)
    });
    let mut rows = vec![row("memory at the peak", &|run| run.schedule.clone())];
    for component in large {
        rows.push(row(component.name(), &|run| Bytes(bytes(run, component)).to_string()));
    }
    rows.push(row(&format!("{} smaller ones", small.len()), &|run| {
        Bytes(small.iter().map(|&component| bytes(run, component)).sum()).to_string()
    }));
    rows.push(row("peak", &|run| Bytes(run.memory.accounted_peak_bytes).to_string()));
    rows.push(row("  planned", &|run| Bytes(run.memory.planned_peak_bytes).to_string()));
    rows.push(row("  transient", &|run| Bytes(run.memory.transient_peak_bytes).to_string()));
    rows.push(row("time to first token", &|run| seconds(run.ttft_s)));
    rows.push(row("kept per head", &kept));
    format!("{}\n{}", table(&rows), bars(runs))
}

/// Positions kept per head, of how many.
fn kept(run: &RunReport) -> String {
    let heads = || run.kept.iter().flat_map(|layer| &layer.per_head);
    let (least, most) = (heads().min().unwrap_or(&0), heads().max().unwrap_or(&0));
    match least == most {
        true => format!("{most} of {}", run.prompt_tokens),
        false => format!("{least}-{most} of {}", run.prompt_tokens),
    }
}

/// Transient memory of both as bars, and the saving.
fn bars(runs: [&RunReport; 2]) -> String {
    let [before, after] = runs.map(|run| run.memory.transient_peak_bytes);
    let mut text = String::from("  transient: what reading took beyond what is kept\n");
    for (run, bytes) in runs.iter().zip([before, after]) {
        let bar = bar(bytes, before.max(after));
        text += &format!("  {:<13} {bar} {}\n", run.schedule, Bytes(bytes));
    }
    text
}

/// A bar of up to 48 columns, to an eighth of a column.
fn bar(bytes: u64, longest: u64) -> String {
    const COLUMNS: u64 = 48;
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = u128::from(bytes) * u128::from(8 * COLUMNS) / u128::from(longest.max(1));
    let (whole, part) = ((eighths / 8) as usize, (eighths % 8) as usize);
    "█".repeat(whole) + PARTS[part]
}

/// Transient memory saved by the second run, in percent; negative when it took
/// more.
pub fn saving([before, after]: [&RunReport; 2]) -> f64 {
    let bytes = |run: &RunReport| run.memory.transient_peak_bytes as f64;
    100.0 * (1.0 - bytes(after) / bytes(before).max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_the_share() {
        assert_eq!(bar(0, 100), "");
        assert_eq!(bar(100, 100), "█".repeat(48));
        assert_eq!(bar(50, 100), "█".repeat(24));
        assert_eq!(bar(51, 100), "█".repeat(24) + "▍");
        assert_eq!(bar(u64::MAX, u64::MAX), "█".repeat(48));
    }
}
