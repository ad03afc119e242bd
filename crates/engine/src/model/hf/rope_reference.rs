//! Rotations of real configurations against `testdata/rope/`: the published
//! formulas with 50 digits, and what the reference library computes.

use super::Config;
use crate::model::{RopeFactors, RopeFrequencies, RopeScaling};
use serde_json::{Map, Value};

/// Half an ulp, of itself: what rounding to f32 may move a number by.
const HALF_ULP: f64 = 1.0 / (1u64 << 24) as f64;

/// How far a frequency computed in f64 may be from the formula's, of itself. The
/// exponent `2i / R` is rounded once, which `ln base < 16` multiplies; the power,
/// the divisions and the blend are some more roundings of 2^-53 each.
const FREQUENCY: f64 = 32.0 * f64::EPSILON / 2.0;

/// The fixture's numbers have 15 digits.
const FIXTURE: f64 = 1e-15;

/// Roundings of the reference's f32 frequencies, of themselves: the same as above
/// in f32, with the exponent's counted.
const REFERENCE_FREQUENCY: f64 = 24.0 * HALF_ULP;

fn fixture() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/rope/rope.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn number(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap()).unwrap()
}

/// The rotations that the engine reads out of a configuration.
fn ropes(config: &Value) -> Vec<crate::model::RopeSpec> {
    let fields: Map<String, Value> = config.as_object().unwrap().clone();
    let config = Config::of(fields, None).unwrap();
    let shape = config.shape(1).unwrap();
    config.ropes(&shape).unwrap()
}

/// Largest distance of the engine's table at a position from the fixture's, and
/// the first number beyond its bound.
fn compare(frequencies: &RopeFrequencies, table: &Value) -> (f64, Option<String>) {
    let position = u32::try_from(table["position"].as_u64().unwrap()).unwrap();
    let pairs = frequencies.inverse.len();
    let (mut cos, mut sin) = (vec![0.0; pairs], vec![0.0; pairs]);
    frequencies.angles(position, &mut cos, &mut sin);
    let (mut largest, mut fault) = (0f64, None);
    for (name, ours, exact) in [("cos", cos, &table["cos"]), ("sin", sin, &table["sin"])] {
        let exact = numbers(exact);
        assert_eq!(exact.len(), pairs);
        for (pair, (ours, exact)) in ours.iter().zip(exact).enumerate() {
            let distance = (f64::from(*ours) - exact).abs();
            let angle = f64::from(position) * frequencies.inverse[pair];
            // The angle's error, then the only rounding to f32.
            let bound = frequencies.magnitude * (angle + 1.0) * (FREQUENCY + FIXTURE)
                + exact.abs() * HALF_ULP;
            largest = largest.max(distance);
            if distance > bound && fault.is_none() {
                fault = Some(format!("{name} of pair {pair} at {position}: {ours}, not {exact}"));
            }
        }
    }
    (largest, fault)
}

#[test]
fn frequencies_are_those_of_the_formulas_and_of_the_reference() {
    let fixture = fixture();
    for case in fixture["cases"].as_array().unwrap() {
        let what = format!("{} at {} tokens", case["config"], case["n_tokens"]);
        let specs = ropes(&fixture["configs"][case["config"].as_str().unwrap()]);
        let spec = &specs[number(&case["rotation"])];
        let ours = spec.frequencies(number(&case["n_tokens"])).unwrap();
        let (exact, theirs) = (numbers(&case["inverse"]), numbers(&case["reference_inverse"]));
        assert_eq!((ours.inverse.len(), theirs.len()), (exact.len(), exact.len()), "{what}");
        for (pair, ours) in ours.inverse.iter().enumerate() {
            let (exact, theirs) = (exact[pair], theirs[pair]);
            let bound = exact * (FREQUENCY + FIXTURE);
            assert!((ours - exact).abs() <= bound, "{what}, pair {pair}: {ours}, not {exact}");
            let bound = exact * REFERENCE_FREQUENCY;
            assert!((ours - theirs).abs() <= bound, "{what}, pair {pair}: {ours}, not {theirs}");
        }
        let magnitude = case["magnitude"].as_f64().unwrap();
        assert!((ours.magnitude - magnitude).abs() <= 8.0 * f64::EPSILON, "{what}");
    }
}

#[test]
fn tables_are_those_of_the_formulas_and_nearer_to_them_than_the_reference() {
    let fixture = fixture();
    let mut positions = 0;
    for case in fixture["cases"].as_array().unwrap() {
        let specs = ropes(&fixture["configs"][case["config"].as_str().unwrap()]);
        let spec = &specs[number(&case["rotation"])];
        let frequencies = spec.frequencies(number(&case["n_tokens"])).unwrap();
        for table in case["tables"].as_array().unwrap() {
            let (largest, fault) = compare(&frequencies, table);
            assert_eq!(fault, None, "{} at {} tokens", case["config"], case["n_tokens"]);
            let theirs = table["reference_error"].as_f64().unwrap();
            // At position 0 both round one number.
            assert!(
                largest <= theirs.max(frequencies.magnitude * HALF_ULP),
                "{}: {largest} and {theirs}",
                case["config"]
            );
            positions += 1;
        }
    }
    assert_eq!(positions, 4 * 13);
}

#[test]
fn the_divisors_of_a_file_give_the_frequencies_of_its_formula() {
    let fixture = fixture();
    let of_llama = |case: &&Value| case["config"] == "llama-3.1-8b";
    let case = fixture["cases"].as_array().unwrap().iter().find(of_llama).unwrap();
    let mut spec = ropes(&fixture["configs"]["llama-3.1-8b"]).remove(0);
    spec.scaling = RopeScaling::None;
    let divisors = numbers(&fixture["rope_freqs"]).into_iter().map(|divisor| divisor as f32);
    spec.factors = RopeFactors::Always(divisors.collect());
    let ours = spec.frequencies(131_072).unwrap();
    for (ours, exact) in ours.inverse.iter().zip(numbers(&case["inverse"])) {
        // The file's divisor is an f32.
        assert!((ours - exact).abs() <= exact * 1.01 * HALF_ULP, "{ours}, not {exact}");
    }
}

#[test]
fn a_table_of_f32_angles_is_told_from_the_formula() {
    let fixture = fixture();
    let case = &fixture["cases"][0];
    let mut frequencies = ropes(&fixture["configs"]["llama-2-7b"])[0].frequencies(1).unwrap();
    for frequency in &mut frequencies.inverse {
        *frequency = f64::from(*frequency as f32);
    }
    let faults: Vec<bool> = case["tables"].as_array().unwrap()[..]
        .iter()
        .map(|table| compare(&frequencies, table).1.is_some())
        .collect();
    assert_eq!(faults, [false, true, true, true]);
}
