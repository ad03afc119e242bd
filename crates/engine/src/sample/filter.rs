//! The candidates for the next token, and the filters that take some away.

use super::SampleConfig;

/// A token that may be drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    /// Its probability times a factor that all candidates share; above 0.
    pub(super) weight: f64,
    pub(super) id: u32,
}

/// Fills `candidates` with the tokens that have a probability above 0 at a
/// temperature above 0, ascending by id; none if every score is negative
/// infinity. Scores are `[vocab]`; the largest gets weight 1.
pub(super) fn fill(candidates: &mut Vec<Candidate>, scores: &[f64], temperature: f32) {
    let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    candidates.clear();
    if best == f64::NEG_INFINITY {
        return;
    }
    let temperature = f64::from(temperature);
    candidates.extend((0u32..).zip(scores).filter_map(|(id, &score)| {
        let weight = ((score - best) / temperature).exp();
        (weight > 0.0).then_some(Candidate { weight, id })
    }));
}

/// Applies the filters of the module's list, steps 5 to 8. At least one
/// candidate stays of at least one.
pub(super) fn filter(candidates: &mut Vec<Candidate>, config: &SampleConfig) {
    if let Some(k) = config.top_k {
        top_k(candidates, k);
    }
    if config.typical_p < 1.0 {
        typical_p(candidates, f64::from(config.typical_p));
    }
    if config.top_p < 1.0 {
        top_p(candidates, f64::from(config.top_p));
    }
    if config.min_p > 0.0 {
        min_p(candidates, f64::from(config.min_p));
    }
}

/// Sum of the weights.
pub(super) fn total(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|candidate| candidate.weight).sum()
}

/// Likelier first; the lower id on ties, so that equal logits are kept equally
/// everywhere.
fn likelier(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.weight.total_cmp(&a.weight).then(a.id.cmp(&b.id))
}

fn top_k(candidates: &mut Vec<Candidate>, k: usize) {
    if k < candidates.len() {
        candidates.select_nth_unstable_by(k, likelier);
        candidates.truncate(k);
        // The order of drawing should not be the partition's.
        candidates.sort_unstable_by_key(|candidate| candidate.id);
    }
}

fn typical_p(candidates: &mut Vec<Candidate>, mass: f64) {
    let total = total(candidates);
    let surprise = |candidate: &Candidate| -(candidate.weight / total).ln();
    let entropy: f64 =
        candidates.iter().map(|candidate| candidate.weight / total * surprise(candidate)).sum();
    let distance = |candidate: &Candidate| (surprise(candidate) - entropy).abs();
    candidates
        .sort_unstable_by(|a, b| distance(a).total_cmp(&distance(b)).then_with(|| likelier(a, b)));
    keep_until(candidates, mass * total);
}

fn top_p(candidates: &mut Vec<Candidate>, mass: f64) {
    let total = total(candidates);
    // All tokens below this weight together have less than 1 - p of the mass, so
    // the nucleus is complete before the first of them: they need no sorting.
    let least = (1.0 - mass) * total / candidates.len() as f64;
    candidates.retain(|candidate| candidate.weight >= least);
    candidates.sort_unstable_by(likelier);
    keep_until(candidates, mass * total);
}

/// Keeps the shortest prefix whose weights reach `mass`.
fn keep_until(candidates: &mut Vec<Candidate>, mass: f64) {
    let mut sum = 0.0;
    let reached = candidates.iter().position(|candidate| {
        sum += candidate.weight;
        sum >= mass
    });
    if let Some(last) = reached {
        candidates.truncate(last + 1);
    }
}

fn min_p(candidates: &mut Vec<Candidate>, share: f64) {
    let best = candidates.iter().map(|candidate| candidate.weight).fold(0.0, f64::max);
    candidates.retain(|candidate| candidate.weight >= share * best);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Candidates with these probabilities, which need not sum to 1.
    fn of(probabilities: &[f64]) -> Vec<Candidate> {
        let candidate = |(id, &weight): (u32, &f64)| Candidate { weight, id };
        (0u32..).zip(probabilities).map(candidate).collect()
    }

    fn kept(mut candidates: Vec<Candidate>, config: &SampleConfig) -> Vec<u32> {
        filter(&mut candidates, config);
        let mut ids: Vec<u32> = candidates.iter().map(|candidate| candidate.id).collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn weights_are_the_softmax_at_the_temperature() {
        let mut candidates = Vec::new();
        fill(&mut candidates, &[0.0, 2f64.ln(), f64::NEG_INFINITY, 4f64.ln()], 1.0);
        let shares: Vec<_> = candidates.iter().map(|c| (c.id, c.weight)).collect();
        assert_eq!(shares.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 1, 3]);
        // ln and exp each round once, so a few ulps of 1.
        for ((_, weight), expected) in shares.iter().zip([0.25, 0.5, 1.0]) {
            assert!((weight - expected).abs() < 1e-15, "{shares:?}");
        }
        fill(&mut candidates, &[0.0, 2f64.ln(), f64::NEG_INFINITY, 4f64.ln()], 0.5);
        assert!((candidates[0].weight - 1.0 / 16.0).abs() < 1e-15);
        fill(&mut candidates, &[f64::NEG_INFINITY; 3], 1.0);
        assert!(candidates.is_empty());
        // The smallest and largest temperatures there are.
        fill(&mut candidates, &[1.0, 2.0, 2.0], f32::from_bits(1));
        assert_eq!(
            candidates,
            [Candidate { weight: 1.0, id: 1 }, Candidate { weight: 1.0, id: 2 }]
        );
        fill(&mut candidates, &[-3e38, 3e38], f32::MAX);
        assert_eq!(candidates.len(), 2);
    }

    #[test]
    fn top_k_takes_the_lowest_ids_of_equals() {
        let config = |k| SampleConfig { top_k: Some(k), ..SampleConfig::default() };
        let all = || of(&[0.1, 0.3, 0.1, 0.3, 0.2]);
        assert_eq!(kept(all(), &config(1)), [1]);
        assert_eq!(kept(all(), &config(3)), [1, 3, 4]);
        assert_eq!(kept(all(), &config(4)), [0, 1, 3, 4]);
        assert_eq!(kept(all(), &config(9)), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn top_p_is_the_shortest_prefix_that_reaches_it() {
        let config = |top_p| SampleConfig { top_p, ..SampleConfig::default() };
        let all = || of(&[0.0625, 0.5, 0.125, 0.25, 0.0625]);
        assert_eq!(kept(all(), &config(0.001)), [1]);
        // Reached exactly: the sums of powers of two do not round.
        assert_eq!(kept(all(), &config(0.5)), [1]);
        assert_eq!(kept(all(), &config(0.501)), [1, 3]);
        assert_eq!(kept(all(), &config(0.875)), [1, 2, 3]);
        assert_eq!(kept(all(), &config(0.9)), [0, 1, 2, 3]);
        assert_eq!(kept(all(), &config(1.0)), [0, 1, 2, 3, 4]);
        // The same for any common factor.
        let tenfold = of(&[0.625, 5.0, 1.25, 2.5, 0.625]);
        assert_eq!(kept(tenfold, &config(0.875)), [1, 2, 3]);
    }

    #[test]
    fn what_top_p_leaves_unsorted_is_never_in_the_nucleus() {
        // A nucleus found by sorting everything, over many shapes of tails.
        for tail in 0..200 {
            let weights: Vec<f64> =
                (0..300).map(|i| f64::from((i * 37 + tail) % 101 + 1).powi(tail % 7)).collect();
            for mass in [0.01, 0.3, 0.9, 0.99, 0.9999] {
                let mut all = of(&weights);
                all.sort_unstable_by(likelier);
                let sum = total(&of(&weights));
                keep_until(&mut all, f64::from(mass) * sum);
                let mut expected: Vec<u32> = all.iter().map(|candidate| candidate.id).collect();
                expected.sort_unstable();
                let config = SampleConfig { top_p: mass, ..SampleConfig::default() };
                assert_eq!(kept(of(&weights), &config), expected, "{tail} {mass}");
            }
        }
    }

    #[test]
    fn typical_p_takes_what_is_nearest_to_the_entropy() {
        let config = |typical_p| SampleConfig { typical_p, ..SampleConfig::default() };
        // By hand, in bits: surprises 1, 2, 3, 3; entropy 1.75; distances 0.75,
        // 0.25, 1.25, 1.25. So the second token is the most typical one.
        let all = || of(&[0.5, 0.25, 0.125, 0.125]);
        assert_eq!(kept(all(), &config(0.2)), [1]);
        assert_eq!(kept(all(), &config(0.26)), [0, 1]);
        assert_eq!(kept(all(), &config(0.75)), [0, 1]);
        // The lower id of the two equals.
        assert_eq!(kept(all(), &config(0.8)), [0, 1, 2]);
        // 3 of 1/4 and 16 of 1/64: surprises 2 and 6, entropy 3, distances 1 and 3.
        let flat = [[0.25; 3].as_slice(), &[1.0 / 64.0; 16]].concat();
        assert_eq!(kept(of(&flat), &config(0.5)), [0, 1]);
        // The most likely token goes where the rest is far more surprising: 3/10 and
        // 700 of 1/1000 have surprises 1.74 and 9.97 and the entropy 7.50.
        let tail = [[0.3].as_slice(), &[0.001; 700]].concat();
        let ids = kept(of(&tail), &config(0.1));
        assert!(!ids.contains(&0) && (100..=101).contains(&ids.len()), "{ids:?}");
    }

    #[test]
    fn min_p_compares_with_the_best() {
        let config = |min_p| SampleConfig { min_p, ..SampleConfig::default() };
        let all = || of(&[0.5, 0.25, 0.125, 0.0625, 0.0625]);
        assert_eq!(kept(all(), &config(0.25)), [0, 1, 2]);
        assert_eq!(kept(all(), &config(0.26)), [0, 1]);
        assert_eq!(kept(all(), &config(1.0)), [0]);
        assert_eq!(kept(all(), &config(0.0)), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn each_filter_sees_what_the_one_before_has_left() {
        let probabilities = [0.5, 0.25, 0.125, 0.125];
        // Of the first two, renormalised to 2/3 and 1/3, the first alone reaches
        // 0.6; of all four it would not.
        let both = SampleConfig { top_k: Some(2), top_p: 0.6, ..SampleConfig::default() };
        assert_eq!(kept(of(&probabilities), &both), [0]);
        assert_eq!(kept(of(&probabilities), &SampleConfig { top_k: None, ..both }), [0, 1]);
        // Typical leaves the second token alone, so it is the best for min-p.
        let both = SampleConfig { typical_p: 0.2, min_p: 1.0, ..SampleConfig::default() };
        assert_eq!(kept(of(&probabilities), &both), [1]);
    }

    #[test]
    fn no_filter_takes_the_last_candidate() {
        let strictest = SampleConfig {
            top_k: Some(1),
            typical_p: f32::MIN_POSITIVE,
            top_p: f32::MIN_POSITIVE,
            min_p: 1.0,
            ..SampleConfig::default()
        };
        assert_eq!(kept(of(&[0.2, 0.3, 0.3]), &strictest), [1]);
        assert_eq!(kept(of(&[f64::MIN_POSITIVE]), &strictest), [0]);
        assert!(kept(of(&[]), &strictest).is_empty());
    }
}
