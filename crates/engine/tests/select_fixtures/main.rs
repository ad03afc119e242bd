//! Kept sets and scores of every selector that exists, against
//! `testdata/selectors`, from the streaming path: over a dense float64 scorer,
//! and over the real kernels of every instruction tier this machine has.
//!
//! The last part shows that the same checks fail for the usual mistakes.

// clippy.toml exempts #[test] functions; the rest of a test binary is test code too.
#![allow(clippy::unwrap_used)]

mod fixture;
mod pipeline;
mod rule;
mod scorer;

use fixture::{Case, Expected, cases};
use pipeline::{Dense, Edit, Pipeline, SelectBug, Streaming};
use rule::{number_error, score_tolerance, set_error, ties_are_strict};
use scorer::{DenseScorer, KernelScorer, RawScores, ScorerBug};
use tidekv::select::{GroupReduce, Observation, Pool, PoolOrder, Scorer, Selector};
use tidekv_kernels::Isa;
use tidekv_kernels::element::Element;

/// What the f32 fixtures call zero: below it probabilities are denormal.
const UNDERFLOW: f64 = 1e-37;

/// Elements in which the inputs are exact, so that results must be as well.
const ELEMENTS: [Element; 2] = [Element::Bf16, Element::F32];

/// Outcome of all comparisons of one pipeline.
#[derive(Default)]
struct Report {
    scores: usize,
    sets: usize,
    failures: Vec<String>,
}

impl Report {
    fn assert_clean(&self) {
        let shown: Vec<_> = self.failures.iter().take(20).cloned().collect();
        let count = self.failures.len();
        assert!(shown.is_empty(), "{count} failures, the first:\n{}", shown.join("\n"));
    }

    fn fail(&mut self, place: &str, error: Option<String>) {
        self.failures.extend(error.map(|error| format!("{place}: {error}")));
    }
}

/// Score blocks of 5 (shorter than the kernel), 32, 64 and the whole prompt.
fn block_sizes(case: &Case) -> [usize; 4] {
    [5, 32, 64, case.dims.n_tokens]
}

fn check_expected(
    case: &Case,
    expected: &Expected,
    selector: &Selector,
    pipeline: &dyn Pipeline,
    report: &mut Report,
) {
    let strict = ties_are_strict(case, expected);
    for block in block_sizes(case) {
        let place = format!("{} {} bs {block}", case.name, expected.id);
        if let (Some(want), Scorer::Observation(o)) = (&expected.scores, &selector.scorer) {
            let tolerance = score_tolerance(case, o.kernel);
            let got = pipeline.pooled(case, selector, block);
            assert_eq!(got.len(), want.len(), "{place}");
            for (head, (got, want)) in got.iter().zip(want).enumerate() {
                assert_eq!(got.len(), want.len(), "{place}");
                for (position, (&got, &want)) in got.iter().zip(want).enumerate() {
                    report.scores += 1;
                    let error = number_error(f64::from(got), want, tolerance, UNDERFLOW);
                    report.fail(&format!("{place} score [{head}, {position}]"), error);
                }
            }
        }
        for set in &expected.sets {
            let got = pipeline.kept(case, selector, set.budget, block);
            assert_eq!(got.len(), set.heads.len(), "{place}");
            for (head, (got, want)) in got.iter().zip(&set.heads).enumerate() {
                report.sets += 1;
                let error = set_error(got, want, strict);
                report.fail(&format!("{place} K {} head {head}", set.budget), error);
            }
        }
    }
}

fn check(case: &Case, pipeline: &dyn Pipeline) -> Report {
    let mut report = Report::default();
    for expected in &case.expected {
        for selector in &expected.selectors {
            check_expected(case, expected, selector, pipeline, &mut report);
        }
    }
    report
}

/// Checks every case with the pipeline that `run` builds over the dense scorer.
fn check_all(bug: Option<ScorerBug>, run: impl Fn(&Case, &dyn RawScores) -> Report) -> Report {
    let mut total = Report::default();
    for case in cases() {
        let report = run(&case, &DenseScorer::new(&case, bug));
        total.scores += report.scores;
        total.sets += report.sets;
        total.failures.extend(report.failures);
    }
    total
}

/// 580 sets in the files (per KV head, budget and way of writing the selector)
/// times 4 block sizes. A constant, so that a loader that drops some is noticed.
const SETS: usize = 4 * 580;

#[test]
fn streaming_over_the_dense_scorer() {
    let report = check_all(None, |case, raw| check(case, &Streaming::new(raw)));
    report.assert_clean();
    assert_eq!(report.sets, SETS);
    assert!(report.scores > 0);
}

#[test]
fn streaming_over_the_kernels_of_every_tier() {
    for isa in Isa::available() {
        for element in ELEMENTS {
            let mut sets = 0;
            for case in cases() {
                let kernels = KernelScorer::new(&case, isa, element);
                let report = check(&case, &Streaming::new(&kernels));
                eprintln!("{} {element:?} {}: {} sets", isa.name(), case.name, report.sets);
                report.assert_clean();
                sets += report.sets;
            }
            assert_eq!(sets, SETS, "{} {element:?}", isa.name());
        }
    }
}

/// Both passes by themselves: lse and row maximum within 1e-5 * max(1, |x|), mean
/// probabilities within 1e-5 and within the relative bound of an f32 score.
#[test]
fn kernel_statistics() {
    for isa in Isa::available() {
        for element in ELEMENTS {
            for case in cases() {
                check_statistics(&case, &KernelScorer::new(&case, isa, element));
            }
        }
    }
}

fn check_statistics(case: &Case, kernels: &KernelScorer) {
    // The relative bound decides in every case; the absolute one only where it is
    // smaller.
    let relative = score_tolerance(case, 1);
    let absolute = if case.name.starts_with("c_") { f64::INFINITY } else { 1e-5 };
    for head in 0..case.query_heads() {
        for row in 0..case.window {
            let max = f64::from(kernels.row_max[head][row]);
            let lse = max + f64::from(kernels.row_sum[head][row]).ln();
            for (got, want) in [(max, case.row_max[head][row]), (lse, case.lse[head][row])] {
                let error = number_error(got, want, 1e-5, 1e-5);
                assert_eq!(error, None, "{} head {head} row {row}", case.name);
            }
        }
        for block in block_sizes(case) {
            let n = case.prefix();
            let got: Vec<f32> = (0..n)
                .step_by(block)
                .flat_map(|start| kernels.block(head, start..(start + block).min(n)))
                .collect();
            for (key, (&got, &want)) in got.iter().zip(&case.attn_mean[head]).enumerate() {
                let error = number_error(f64::from(got), want, relative, UNDERFLOW)
                    .or_else(|| number_error(f64::from(got), want, 0.0, absolute));
                let error =
                    error.map(|error| format!("{} head {head} key {key}: {error}", case.name));
                assert_eq!(error, None);
            }
        }
    }
}

/// The dense control in the same precision: equal scores and sets, bit for bit,
/// for every block size.
#[test]
fn streaming_equals_the_dense_control() {
    for case in cases() {
        for isa in Isa::available() {
            let kernels = KernelScorer::new(&case, isa, Element::Bf16);
            let (streaming, dense) = (Streaming::new(&kernels), Dense { raw: &kernels, bug: None });
            for expected in &case.expected {
                for selector in &expected.selectors {
                    for block in [1, 2, 5, 7, 32, 63, 64, case.dims.n_tokens] {
                        let place = format!("{} {} bs {block}", case.name, expected.id);
                        if expected.scores.is_some() {
                            let got = streaming.pooled(&case, selector, block);
                            assert_eq!(got, dense.pooled(&case, selector, block), "{place}");
                        }
                        for set in &expected.sets {
                            let got = streaming.kept(&case, selector, set.budget, block);
                            let want = dense.kept(&case, selector, set.budget, block);
                            assert_eq!(got, want, "{place} K {}", set.budget);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn the_dense_copy_passes_without_a_bug() {
    check_all(None, |case, raw| check(case, &Dense { raw, bug: None })).assert_clean();
}

#[test]
fn every_bug_after_scoring_is_noticed() {
    for bug in SelectBug::ALL {
        let report = check_all(None, |case, raw| check(case, &Dense { raw, bug: Some(bug) }));
        assert!(!report.failures.is_empty(), "{bug:?} passes");
        // By the sets too, not only by scores.
        let sets = report.failures.iter().filter(|failure| failure.contains(" K ")).count();
        assert!(sets > 0, "{bug:?} is seen by scores only");
    }
}

#[test]
fn every_bug_in_scoring_is_noticed() {
    for bug in ScorerBug::ALL {
        let report = check_all(Some(bug), |case, raw| check(case, &Streaming::new(raw)));
        assert!(!report.failures.is_empty(), "{bug:?} passes");
    }
}

#[test]
fn every_wrong_selector_is_noticed() {
    fn observing(selector: Selector, edit: fn(&mut Observation)) -> Selector {
        let Scorer::Observation(mut observation) = selector.scorer else {
            return selector;
        };
        edit(&mut observation);
        Selector { scorer: Scorer::Observation(observation), ..selector }
    }
    let mistakes: [(&str, Edit); 7] = [
        ("wider kernel", |s| observing(s, |o| o.kernel += 2)),
        ("narrower kernel", |s| observing(s, |o| o.kernel -= 2)),
        ("no pooling", |s| observing(s, |o| o.kernel = 1)),
        ("average for maximum", |s| {
            observing(s, |o| o.pool = if o.pool == Pool::Max { Pool::Avg } else { Pool::Max })
        }),
        ("group maximum for mean", |s| observing(s, |o| o.group = GroupReduce::Max)),
        ("pooling before grouping", |s| observing(s, |o| o.order = PoolOrder::PoolThenGroup)),
        ("one sink too few", |s| Selector { sinks: s.sinks.saturating_sub(1), ..s }),
    ];
    for (name, edit) in mistakes {
        let report = check_all(None, |case, raw| check(case, &Streaming { raw, edit }));
        let sets = report.failures.iter().filter(|failure| failure.contains(" K ")).count();
        assert!(sets > 0, "{name} passes");
    }
}
