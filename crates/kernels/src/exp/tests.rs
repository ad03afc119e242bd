use super::*;
use crate::isa::Isa;
use crate::lanes::{Kernel, dispatch};
use crate::test_data::ulps;

/// The bound that the documentation of [`exp`] states.
///
/// The result before scaling lies in [0.7, 1.42); in units of its smaller binade, 2^-24: the last
/// sum rounds by 0.5, the sum before it, below 0.5, by 0.25, and the reduced argument, below 0.35,
/// by 0.25. The two parts of ln 2 miss it by 1.7e-12, which n up to 128 makes 0.004, and the
/// portable tier rounds the product with the second part, 0.02. The polynomial, its coefficients
/// and the rounding of its inner terms, which r^2 scales down, add less than 0.2 together.
const EXP_MAX_ULP: f64 = 1.25;

/// The relative error of `1 + e^-x` and of the quotient add one rounding each; a relative error
/// of `t` units of `2^-24` is at most `t` ulp.
const SILU_MAX_ULP: f64 = 2.0 * EXP_MAX_ULP + 2.0;

/// Applies one of the functions to every element.
struct Map<'a> {
    silu: bool,
    values: &'a mut [f32],
}

impl Kernel for Map<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        for part in self.values.chunks_mut(L::N) {
            let x = lanes.load_first(part);
            let y = if self.silu { silu(lanes, x) } else { exp(lanes, x) };
            lanes.store_first(y, part);
        }
    }
}

fn exp_of(isa: Isa, x: f32) -> f32 {
    let mut values = [x];
    dispatch(isa, Map { silu: false, values: &mut values });
    values[0]
}

fn silu_of(isa: Isa, x: f32) -> f32 {
    let mut values = [x];
    dispatch(isa, Map { silu: true, values: &mut values });
    values[0]
}

/// Every 127th f32 from `low` to `high`, which have one sign.
fn sweep(low: f32, high: f32) -> Vec<f32> {
    let (a, b) = (low.to_bits().min(high.to_bits()), low.to_bits().max(high.to_bits()));
    (a..=b).step_by(127).chain([b]).map(f32::from_bits).collect()
}

/// The largest error over `x`, and where it is.
fn worst(isa: Isa, silu: bool, x: &[f32], reference: fn(f64) -> f64) -> (f64, f32) {
    let mut y = x.to_vec();
    dispatch(isa, Map { silu, values: &mut y });
    x.iter().zip(y).fold((0.0, 0.0), |worst, (&x, y)| {
        let error = ulps(y, reference(f64::from(x)));
        if error > worst.0 { (error, x) } else { worst }
    })
}

#[test]
fn exp_is_within_its_bound_on_both_sides_of_zero() {
    for isa in Isa::available() {
        for (low, high) in [(EXP_ZERO_BELOW, -0.0), (0.0, EXP_FINITE_UP_TO)] {
            let (error, x) = worst(isa, false, &sweep(low, high), f64::exp);
            println!("{}: exp within {error:.3} ulp, worst at {x}", isa.name());
            assert!(error <= EXP_MAX_ULP, "{}: {error} ulp at {x}", isa.name());
        }
    }
}

#[test]
fn silu_is_within_its_bound_on_both_sides_of_zero() {
    for isa in Isa::available() {
        for (low, high) in [(-EXP_FINITE_UP_TO, -0.0), (0.0, 1e30)] {
            let (error, x) = worst(isa, true, &sweep(low, high), |x| x / (1.0 + (-x).exp()));
            println!("{}: silu within {error:.3} ulp, worst at {x}", isa.name());
            assert!(error <= SILU_MAX_ULP, "{}: {error} ulp at {x}", isa.name());
        }
    }
}

#[test]
fn the_sweep_finds_a_wrong_function() {
    let isa = Isa::detect();
    let wrong = |x: f64| x.exp() * (1.0 + 1e-6);
    assert!(worst(isa, false, &sweep(-1.0, -0.5), wrong).0 > EXP_MAX_ULP);
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
                assert!(exp_of(isa, nan).is_nan(), "{} {payload:#x}", isa.name());
                assert!(silu_of(isa, nan).is_nan(), "{} {payload:#x}", isa.name());
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
        dispatch(isa, Map { silu: false, values: &mut together });
        for (&x, y) in x.iter().zip(together) {
            assert_eq!(exp_of(isa, x).to_bits(), y.to_bits(), "{} exp({x})", isa.name());
        }
    }
}
