//! The activations of gated MLPs by themselves, for products that do not end in an epilogue.

use super::Epilogue;
use crate::exp::{gelu_tanh, silu};
use crate::isa::Isa;
use crate::lanes::{Kernel, Lanes, dispatch};

/// What a gated MLP applies to its gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x / (1 + e^-x)`, within 4.5 units in the last place; zero below -88.8, where the exact
    /// values are within 3e-37 of it. NaN for NaN and for `-inf`, whose limit is 0: a non-finite
    /// activation stays visible.
    Silu,
    /// `0.5 x (1 + tanh(w / 2))`, `w = sqrt(8 / pi) (x + 0.044715 x^3)` (Hendrycks and Gimpel 2016,
    /// the tanh form), from -10 on within `4.5 + 7 |w| sigmoid(-w)` units in the last place: 6.5
    /// for positive x, and for negative x an absolute error below 1.5e-7. Below -10 the result
    /// falls to zero, off by less than 4e-38. NaN for NaN and for `-inf`, as above.
    GeluTanh,
}

impl From<Activation> for Epilogue<'_> {
    /// The epilogue that applies it.
    fn from(activation: Activation) -> Self {
        match activation {
            Activation::Silu => Epilogue::Silu,
            Activation::GeluTanh => Epilogue::GeluTanh,
        }
    }
}

/// `gate[i] = activation(gate[i]) * up[i]`, both `[d_ff]`: with the bits of the activation's
/// epilogue followed by [`Epilogue::Mul`].
///
/// # Panics
/// If the lengths differ.
pub fn activate_and_multiply(isa: Isa, activation: Activation, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "one gate for each value");
    dispatch(isa, Gated { activation, gate, up });
}

struct Gated<'a> {
    activation: Activation,
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Kernel for Gated<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) {
        let Gated { activation, gate, up } = self;
        for (gate, up) in gate.chunks_mut(L::N).zip(up.chunks(L::N)) {
            let x = lanes.load_first(gate);
            let active = match activation {
                Activation::Silu => silu(lanes, x),
                Activation::GeluTanh => gelu_tanh(lanes, x),
            };
            lanes.store_first(lanes.mul(active, lanes.load_first(up)), gate);
        }
    }
}
