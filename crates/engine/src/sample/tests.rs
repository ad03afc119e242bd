//! Whole draws: that the parts are put together as the module says.

use super::*;

fn sampler(config: SampleConfig) -> Sampler {
    Sampler::new(config).unwrap()
}

fn hot() -> SampleConfig {
    SampleConfig { temperature: 1.0, ..SampleConfig::default() }
}

/// The distinct tokens of many draws, ascending.
fn drawn(config: SampleConfig, logits: &[f32]) -> Vec<u32> {
    let mut sampler = sampler(config);
    let mut seen: Vec<u32> = (0..2000).map(|_| sampler.draw(logits).unwrap()).collect();
    seen.sort_unstable();
    seen.dedup();
    seen
}

/// Asserts that tokens are drawn as often as `expected` says.
#[track_caller]
fn assert_frequencies(sampler: &mut Sampler, logits: &[f32], expected: &[f64]) {
    const DRAWS: usize = 100_000;
    let mut counts = vec![0.0; logits.len()];
    for _ in 0..DRAWS {
        counts[sampler.draw(logits).unwrap() as usize] += 1.0;
    }
    for (id, (count, &p)) in counts.iter().zip(expected).enumerate() {
        // Five standard deviations of a binomial share; 0 must be 0.
        let bound = 5.0 * (p * (1.0 - p) / DRAWS as f64).sqrt();
        assert!((count / DRAWS as f64 - p).abs() <= bound, "token {id}: {counts:?} {expected:?}");
    }
}

fn softmax<const N: usize>(logits: [f64; N]) -> [f64; N] {
    let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
    logits.map(|logit| logit.exp() / total)
}

#[test]
fn greedy_takes_the_lowest_id_of_equals() {
    assert_eq!(sampler(SampleConfig::default()).draw(&[1.0, 3.0, 3.0]).unwrap(), 1);
    // Filters have nothing to say about the most likely token.
    let filtered = SampleConfig { typical_p: 0.1, ..SampleConfig::default() };
    assert_eq!(sampler(filtered).draw(&[0.5f32.ln(), 0.25f32.ln(), 0.25f32.ln()]).unwrap(), 0);
}

#[test]
fn frequencies_follow_the_softmax_at_the_temperature() {
    let logits = [0.0, 0.5, 1.0];
    let config = SampleConfig { temperature: 0.5, ..hot() };
    let expected = softmax(logits.map(|logit: f64| logit / 0.5));
    assert_frequencies(&mut sampler(config), &logits.map(|x| x as f32), &expected);
}

#[test]
#[should_panic(expected = "token 0")]
fn a_distribution_slightly_off_is_noticed() {
    let expected = [0.344, 0.328, 0.328];
    assert_frequencies(&mut sampler(hot()), &[0.0; 3], &expected);
}

#[test]
fn frequencies_within_filters_are_renormalised() {
    let logits = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln);
    let config = SampleConfig { top_p: 0.75, ..hot() };
    assert_frequencies(&mut sampler(config), &logits, &[2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]);
    let config = SampleConfig { min_p: 0.24, ..hot() };
    assert_frequencies(&mut sampler(config), &logits, &[0.5, 0.25, 0.125, 0.125]);
    let config = SampleConfig { min_p: 0.26, ..hot() };
    assert_frequencies(&mut sampler(config), &logits, &[2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]);
}

#[test]
fn filters_see_the_distribution_after_the_temperature() {
    // At T = 1 the best has 0.644 of the mass, at T = 0.5 it has 0.865.
    let logits = [0.0, 1.0, 2.0, 3.0];
    let config = SampleConfig { top_p: 0.8, ..hot() };
    assert_eq!(drawn(config.clone(), &logits), [2, 3]);
    assert_eq!(drawn(SampleConfig { temperature: 0.5, ..config }, &logits), [3]);
}

#[test]
fn bias_comes_first_then_repetition_then_presence_and_frequency() {
    let config = SampleConfig {
        logit_bias: vec![(0, 2.0), (3, f32::NEG_INFINITY), (0, 1.0)],
        penalties: Penalties { repetition: 2.0, last_n: None, presence: 0.25, frequency: 0.5 },
        ..hot()
    };
    let mut sampler = sampler(config);
    sampler.read(&[0, 4]);
    sampler.accept(1);
    sampler.accept(1);
    // Token 0: (-1 + 3) / 2 = 1. Token 1: 4 / 2 - 2 * 0.5 - 0.25 = 0.75. Token 2
    // as it is. Token 3 never. Token 4: -1 * 2.
    let expected = [1.0, 0.75, 0.5, f64::NEG_INFINITY, -2.0];
    let logits = [-1.0, 4.0, 0.5, 9.0, -1.0];
    sampler.score(&logits).unwrap();
    assert_eq!(sampler.scores, expected);
    assert_frequencies(&mut sampler, &logits, &softmax(expected));
    // Greedy takes account of them too.
    sampler.config.temperature = 0.0;
    assert_eq!(sampler.draw(&logits).unwrap(), 0);
}

#[test]
fn a_draw_alone_is_no_answer() {
    let penalties = Penalties { presence: 2.0, ..Penalties::default() };
    let mut sampler = sampler(SampleConfig { penalties, ..SampleConfig::default() });
    assert_eq!((sampler.draw(&[1.0, 0.0]).unwrap(), sampler.draw(&[1.0, 0.0]).unwrap()), (0, 0));
    sampler.accept(0);
    assert_eq!(sampler.draw(&[1.0, 0.0]).unwrap(), 1);
}

#[test]
fn what_is_not_a_number_is_an_error_and_nothing_left_is_one_too() {
    for temperature in [0.0, 1.0] {
        let config = SampleConfig { temperature, ..SampleConfig::default() };
        let mut sampler = sampler(config.clone());
        sampler.read(&[5, 6, 7]);
        for bad in [f32::NAN, f32::INFINITY] {
            let error = sampler.draw(&[0.0, bad]).unwrap_err();
            let Error::Backend(BackendError::NonFinite { place, position }) = error else {
                panic!("{error}");
            };
            assert_eq!((place.as_str(), position), ("the logit of token 1", 2));
        }
        // Ruled out from outside, by bias, and all of it.
        assert_eq!(sampler.draw(&[f32::NEG_INFINITY, -7.0]).unwrap(), 1);
        let ruled_out = (0..3).map(|id| (id, f32::NEG_INFINITY)).collect();
        let mut none = self::sampler(SampleConfig { logit_bias: ruled_out, ..config });
        let error = none.draw(&[0.0; 3]).unwrap_err();
        assert!(error.to_string().contains("every token"), "{error}");
        assert_eq!(none.draw(&[0.0; 4]).unwrap(), 3);
        assert!(none.draw(&[]).is_err());
    }
}

#[test]
fn same_seed_same_tokens() {
    let draw = |seed| {
        let mut sampler = sampler(SampleConfig { seed, ..hot() });
        (0..20).map(|_| sampler.draw(&[0.1; 50]).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
    assert!(Sampler::new(SampleConfig { top_p: 2.0, ..hot() }).is_err());
}
