use super::*;
use crate::isa::Isa;
use crate::lanes::{Kernel, dispatch};
use crate::test_data::{assert_close, ulps};

/// The bound that the documentation of [`exp`] states.
///
/// The result before scaling lies in [0.7, 1.42); in units of its smaller binade, 2^-24: the last
/// sum rounds by 0.5, the sum before it, below 0.5, by 0.25, and the reduced argument, below 0.35,
/// by 0.25. The two parts of ln 2 miss it by 1.7e-12, which n up to 128 makes 0.004, and the
/// portable tier rounds the product with the second part, 0.02. The polynomial, its coefficients
/// and the rounding of its inner terms, which r^2 scales down, add less than 0.2 together.
const EXP_MAX_ULP: f64 = 1.25;

/// The bound that the documentation of [`exp_nonpositive`] states, in units of 2^-24 for results in
/// [0.7, 1.42): the polynomial's fit 1.6, the last sum 0.5, the product before it (below 0.42) 0.25
/// where it is rounded, its coefficient (next to 1, off by half a unit of 2^-24, times r) 0.2, and
/// the reduced argument 0.25.
const EXP_NONPOSITIVE_MAX_ULP: f64 = 3.0;

/// The relative error of `1 + e^-x` and of the quotient add one rounding each; a relative error
/// of `t` units of `2^-24` is at most `t` ulp.
const SILU_MAX_ULP: f64 = 2.0 * EXP_MAX_ULP + 2.0;

/// The bound that the documentation of [`tanh`] states, in units of 2^-24.
///
/// By the exponential the result lies above 1/2, where the unit in the last place is 2^-24. The
/// quotient is below 0.445 and off by one relative rounding of its own, one of the sum, and what the
/// exponential misses (its ulp is at most two units): `0.445 (2 + 2 EXP_MAX_ULP) = 2.0`; the last
/// difference rounds by 0.5. The polynomial's sum also rounds by 0.5 ulp, and its small term, at most
/// 0.12 of the result, carries less than 10 roundings of 2^-24 and its fit.
const TANH_MAX_ULP: f64 = 2.5;

/// The bound that the documentation of [`gelu_tanh`] states, for the argument `x`.
///
/// As in [`SILU_MAX_ULP`], and the argument of the exponential carries at most 7 roundings: three in
/// the cubic term (its square, its coefficient and, where the tier does not fuse, its product), the
/// sum, the factor and two products. The relative effect on `1 / (1 + e^-w)` is `|w| sigmoid(-w)`
/// times theirs.
fn gelu_max_ulp(x: f64) -> f64 {
    let w = gelu_argument(x);
    SILU_MAX_ULP + 7.0 * w.abs() / (1.0 + w.exp())
}

/// w of [`gelu_tanh`].
fn gelu_argument(x: f64) -> f64 {
    (8.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))
}

/// [`gelu_tanh`] without the cancellation of its definition.
fn gelu_reference(x: f64) -> f64 {
    x / (1.0 + (-gelu_argument(x)).exp())
}

/// A function on lanes.
#[derive(Clone, Copy, Debug)]
enum Function {
    Exp,
    ExpNonpositive,
    Silu,
    Tanh,
    GeluTanh,
    SoftCap(f32),
}

/// Applies one of the functions to every element.
struct Map<'a> {
    function: Function,
    values: &'a mut [f32],
}

impl Kernel for Map<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        for part in self.values.chunks_mut(L::N) {
            let x = lanes.load_first(part);
            let y = match self.function {
                Function::Exp => exp(lanes, x),
                Function::ExpNonpositive => exp_nonpositive(lanes, x),
                Function::Silu => silu(lanes, x),
                Function::Tanh => tanh(lanes, x),
                Function::GeluTanh => gelu_tanh(lanes, x),
                Function::SoftCap(cap) => soft_cap(lanes, cap, x),
            };
            lanes.store_first(y, part);
        }
    }
}

fn of(isa: Isa, function: Function, x: f32) -> f32 {
    let mut values = [x];
    dispatch(isa, Map { function, values: &mut values });
    values[0]
}

fn exp_of(isa: Isa, x: f32) -> f32 {
    of(isa, Function::Exp, x)
}

fn silu_of(isa: Isa, x: f32) -> f32 {
    of(isa, Function::Silu, x)
}

/// Every 127th f32 from `low` to `high`, which have one sign.
fn sweep(low: f32, high: f32) -> Vec<f32> {
    let (a, b) = (low.to_bits().min(high.to_bits()), low.to_bits().max(high.to_bits()));
    (a..=b).step_by(127).chain([b]).map(f32::from_bits).collect()
}

/// The largest error over `x`, and where it is.
fn worst(isa: Isa, function: Function, x: &[f32], reference: fn(f64) -> f64) -> (f64, f32) {
    let mut y = x.to_vec();
    dispatch(isa, Map { function, values: &mut y });
    x.iter().zip(y).fold((0.0, 0.0), |worst, (&x, y)| {
        let error = ulps(y, reference(f64::from(x)));
        if error > worst.0 { (error, x) } else { worst }
    })
}

#[test]
fn exp_is_within_its_bound_on_both_sides_of_zero() {
    for isa in Isa::available() {
        for (low, high) in [(EXP_ZERO_BELOW, -0.0), (0.0, EXP_FINITE_UP_TO)] {
            let (error, x) = worst(isa, Function::Exp, &sweep(low, high), f64::exp);
            println!("{}: exp within {error:.3} ulp, worst at {x}", isa.name());
            assert!(error <= EXP_MAX_ULP, "{}: {error} ulp at {x}", isa.name());
        }
    }
}

#[test]
fn exp_nonpositive_is_within_its_bound_and_exact_at_both_ends() {
    for isa in Isa::available() {
        let name = isa.name();
        let x = sweep(EXP_ZERO_BELOW, -0.0);
        let (error, at) = worst(isa, Function::ExpNonpositive, &x, f64::exp);
        println!("{name}: exp_nonpositive within {error:.3} ulp, worst at {at}");
        assert!(error <= EXP_NONPOSITIVE_MAX_ULP, "{name}: {error} ulp at {at}");
        let exp = |x| of(isa, Function::ExpNonpositive, x);
        // The largest logit weighs 1, and what was summed before it stays as it is.
        assert_eq!((exp(0.0), exp(-0.0)), (1.0, 1.0), "{name}");
        for x in [f32::NEG_INFINITY, -1e30, -1000.0, -104.0, EXP_ZERO_BELOW.next_down()] {
            assert_eq!(exp(x).to_bits(), 0, "{name}: {x}");
        }
        assert!(exp(EXP_ZERO_BELOW) >= f32::MIN_POSITIVE, "{name}");
    }
}

#[test]
fn silu_is_within_its_bound_on_both_sides_of_zero() {
    for isa in Isa::available() {
        for (low, high) in [(-EXP_FINITE_UP_TO, -0.0), (0.0, 1e30)] {
            let (error, x) =
                worst(isa, Function::Silu, &sweep(low, high), |x| x / (1.0 + (-x).exp()));
            println!("{}: silu within {error:.3} ulp, worst at {x}", isa.name());
            assert!(error <= SILU_MAX_ULP, "{}: {error} ulp at {x}", isa.name());
        }
    }
}

#[test]
fn the_sweep_finds_a_wrong_function() {
    let isa = Isa::detect();
    let wrong = |x: f64| x.exp() * (1.0 + 1e-6);
    assert!(worst(isa, Function::Exp, &sweep(-1.0, -0.5), wrong).0 > EXP_MAX_ULP);
}

#[test]
fn exp_at_the_edges() {
    for isa in Isa::available() {
        let name = isa.name();
        assert_eq!(exp_of(isa, 0.0), 1.0, "{name}");
        assert_eq!(exp_of(isa, -0.0), 1.0, "{name}");
        assert_eq!(exp_of(isa, 1e-45), 1.0, "{name}");
        for x in [f32::NEG_INFINITY, -1e30, -1000.0, -104.0, EXP_ZERO_BELOW.next_down()] {
            assert_eq!(exp_of(isa, x).to_bits(), 0, "{name}: exp({x})");
        }
        assert!(exp_of(isa, EXP_ZERO_BELOW) >= f32::MIN_POSITIVE, "{name}");
        assert!(exp_of(isa, EXP_FINITE_UP_TO).is_finite(), "{name}");
        for x in [EXP_FINITE_UP_TO.next_up(), 89.0, 1000.0, 1e30, f32::INFINITY] {
            assert_eq!(exp_of(isa, x), f32::INFINITY, "{name}: exp({x})");
        }
    }
}

#[test]
fn nan_stays_nan_whatever_its_payload() {
    for isa in Isa::available() {
        for payload in [1, 0xff, 0x100, 0x0012_3456, 0x003f_ffff, 0x0040_0000] {
            for sign in [0, 0x8000_0000] {
                let nan = f32::from_bits(sign | 0x7f80_0000 | payload);
                for function in [
                    Function::Exp,
                    Function::ExpNonpositive,
                    Function::Silu,
                    Function::Tanh,
                    Function::GeluTanh,
                    Function::SoftCap(30.0),
                ] {
                    let y = of(isa, function, nan);
                    assert!(y.is_nan(), "{} {function:?} {payload:#x}: {y}", isa.name());
                }
            }
        }
    }
}

#[test]
fn silu_at_the_edges() {
    for isa in Isa::available() {
        let name = isa.name();
        assert_eq!(silu_of(isa, 0.0), 0.0, "{name}");
        assert_eq!(silu_of(isa, 100.0), 100.0, "{name}");
        assert_eq!(silu_of(isa, f32::INFINITY), f32::INFINITY, "{name}");
        assert_eq!(silu_of(isa, -90.0), 0.0, "{name}: e^90 is infinite");
        assert!(silu_of(isa, f32::NEG_INFINITY).is_nan(), "{name}: must stay visible");
    }
}

#[test]
fn a_lane_does_not_depend_on_its_neighbours() {
    let x: Vec<f32> = (0..200).map(|i| i as f32 * 0.77 - 90.0).collect();
    for isa in Isa::available() {
        let mut together = x.clone();
        dispatch(isa, Map { function: Function::Exp, values: &mut together });
        for (&x, y) in x.iter().zip(together) {
            assert_eq!(exp_of(isa, x).to_bits(), y.to_bits(), "{} exp({x})", isa.name());
        }
    }
}

/// Every 127th f32 from 0 to infinity, and the neighbours of the seam.
fn all_magnitudes() -> Vec<f32> {
    let seam = TANH_BY_EXP_FROM;
    let mut values = sweep(0.0, f32::INFINITY);
    values.extend([seam.next_down(), seam, seam.next_up(), 1e-45, f32::MIN_POSITIVE, f32::MAX]);
    values
}

#[test]
fn tanh_is_within_its_bound_over_all_f32() {
    let values = all_magnitudes();
    for isa in Isa::available() {
        let (error, x) = worst(isa, Function::Tanh, &values, f64::tanh);
        println!("{}: tanh within {error:.3} ulp, worst at {x}", isa.name());
        assert!(error <= TANH_MAX_ULP, "{}: {error} ulp at {x}", isa.name());
    }
    let wrong = |x: f64| x.tanh() * (1.0 + 2e-7);
    assert!(worst(Isa::detect(), Function::Tanh, &values, wrong).0 > TANH_MAX_ULP, "no power");
}

#[test]
fn tanh_is_odd_to_the_bit_bounded_and_saturates() {
    let positive = all_magnitudes();
    let negative: Vec<f32> = positive.iter().map(|x| -x).collect();
    for isa in Isa::available() {
        let (mut up, mut down) = (positive.clone(), negative.clone());
        dispatch(isa, Map { function: Function::Tanh, values: &mut up });
        dispatch(isa, Map { function: Function::Tanh, values: &mut down });
        for ((x, y), minus) in positive.iter().zip(up).zip(down) {
            assert_eq!((-y).to_bits(), minus.to_bits(), "{} tanh({x})", isa.name());
            assert!((0.0..=1.0).contains(&y), "{} tanh({x}) = {y}", isa.name());
            if *x >= 9.02 {
                assert_eq!(y, 1.0, "{} tanh({x})", isa.name());
            }
        }
    }
}

#[test]
fn gelu_is_within_its_bound_on_both_sides_of_zero() {
    let values: Vec<f32> = [sweep(-10.0, -0.0), sweep(0.0, f32::MAX)].concat();
    for isa in Isa::available() {
        let mut got = values.clone();
        dispatch(isa, Map { function: Function::GeluTanh, values: &mut got });
        let (mut largest, mut absolute) = (0.0f64, 0.0f64);
        for (&x, y) in values.iter().zip(got) {
            let x = f64::from(x);
            let want = gelu_reference(x);
            let share = ulps(y, want) / gelu_max_ulp(x);
            assert!(share <= 1.0, "{} gelu({x}) = {y} for {want}: {share}", isa.name());
            largest = largest.max(share);
            if x < 0.0 {
                absolute = absolute.max((f64::from(y) - want).abs());
            }
        }
        println!("{}: gelu at {largest:.3} of its bound, {absolute:e} below 0", isa.name());
        assert!(absolute < 1.5e-7, "{}: {absolute:e}", isa.name());
        for x in sweep(-200.0, -10.0) {
            let (y, want) = (of(isa, Function::GeluTanh, x), gelu_reference(f64::from(x)));
            assert_close(&format!("{} gelu({x})", isa.name()), y, want, 4e-38);
        }
    }
}

#[test]
fn the_gelu_reference_is_the_definition_and_its_bound_can_fail() {
    for x in [-8.0f64, -3.0, -1.0, -0.1, 0.0, 0.1, 1.0, 3.0, 8.0] {
        let root = (2.0 / std::f64::consts::PI).sqrt();
        let definition = 0.5 * x * (1.0 + (root * (x + 0.044715 * x.powi(3))).tanh());
        assert!((gelu_reference(x) - definition).abs() < 1e-15, "{x}");
    }
    // The other GELU, by the error function, at 1: no neighbour.
    assert!(ulps(0.841_344_8, gelu_reference(1.0)) > gelu_max_ulp(1.0));
}

#[test]
fn gelu_at_the_edges() {
    for isa in Isa::available() {
        let (name, gelu) = (isa.name(), |x| of(isa, Function::GeluTanh, x));
        assert_eq!(gelu(0.0).to_bits(), 0, "{name}");
        assert_eq!(gelu(-0.0).to_bits(), (-0.0f32).to_bits(), "{name}");
        for x in [20.0, 1e15, 1e20, f32::MAX, f32::INFINITY] {
            assert_eq!(gelu(x), x, "{name}: the cube may be infinite");
        }
        for x in [-10.2, -1e15, -1e20, f32::MIN] {
            assert_eq!(gelu(x), 0.0, "{name}: gelu({x})");
        }
        assert!(gelu(f32::NEG_INFINITY).is_nan(), "{name}: must stay visible");
    }
}

#[test]
fn soft_caps_are_within_their_bound_and_never_above_the_cap() {
    for cap in [0.5f32, 5.0, 30.0, 50.0] {
        let bound = 4.0 * f64::from(cap) * 2f64.powi(-24);
        let values: Vec<f32> = (0..200_000).map(|i| (i as f32 - 1e5) * 1e-4 * cap).collect();
        for isa in Isa::available() {
            let mut got = values.clone();
            dispatch(isa, Map { function: Function::SoftCap(cap), values: &mut got });
            for (&x, y) in values.iter().zip(got) {
                let want = f64::from(cap) * (f64::from(x) / f64::from(cap)).tanh();
                assert_close(&format!("{} cap {cap} of {x}", isa.name()), y, want, bound);
                assert!(y.abs() <= cap, "{} cap {cap} of {x}: {y}", isa.name());
            }
            let limits = [f32::NEG_INFINITY, f32::MIN, f32::MAX, f32::INFINITY];
            let capped = limits.map(|x| of(isa, Function::SoftCap(cap), x));
            assert_eq!(capped, [-cap, -cap, cap, cap], "{}", isa.name());
        }
    }
}
