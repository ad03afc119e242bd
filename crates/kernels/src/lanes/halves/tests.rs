//! Every operation of every tier against scalar Rust.

use super::*;
use crate::lanes::MAX_LANES;
use crate::test_data::Random;

/// The halves of a vector, in order.
fn halves_of<L: Halves>(lanes: L, halves: L::I) -> Vec<i16> {
    let mut bits = [0.0; MAX_LANES];
    lanes.store(lanes.of_bits(halves), &mut bits);
    let words = bits[..L::N].iter().map(|word| word.to_bits());
    words.flat_map(|word| [word as i16, (word >> 16) as i16]).collect()
}

#[derive(Clone, Copy)]
struct Test;

impl HalvesKernel for Test {
    type Output = ();

    fn run<L: Halves>(self, lanes: L) {
        assert_eq!(2 * L::N, HALVES);
        let mut random = Random::new(1);
        let bytes: Vec<u8> = (0..=u8::MAX).collect();
        for at in 0..=bytes.len() - HALVES {
            let src = &bytes[at..];
            let want: Vec<i16> = src[..HALVES].iter().map(|&byte| i16::from(byte)).collect();
            assert_eq!(halves_of(lanes, lanes.load_u8_halves(src)), want);
            let signed = |byte: &u8| i16::from(byte.cast_signed());
            let want: Vec<i16> = src[..HALVES].iter().map(signed).collect();
            assert_eq!(halves_of(lanes, lanes.load_i8_halves(src)), want);
        }
        for _ in 0..1000 {
            let bits = random.bits() as u16;
            let want: Vec<i16> = (0..HALVES).map(|j| (bits >> j & 1) as i16 - 1).collect();
            assert_eq!(halves_of(lanes, lanes.halves_where_clear(bits)), want, "{bits:#x}");
            let (a, b) = (random.bits() as i16, random.bits() as i16);
            let sum = lanes.add_halves(lanes.splat_half(a), lanes.splat_half(b));
            assert_eq!(halves_of(lanes, sum), [a.wrapping_add(b); HALVES]);
        }
        let mut floats = random.uniform(2 * L::N, 32767.0);
        floats[..9].copy_from_slice(&[0.5, 1.5, -0.5, -2.5, 32767.0, -32767.0, -0.0, 0.49, 2.51]);
        let packed = lanes.pack_halves(lanes.load(&floats), lanes.load(&floats[L::N..]));
        let want: Vec<i16> = floats.iter().map(|x| x.round_ties_even() as i16).collect();
        assert_eq!(halves_of(lanes, packed), want);
    }
}

#[test]
fn operations_equal_scalar_code_on_every_tier() {
    for isa in Isa::available() {
        dispatch_halves(isa, Test);
    }
}

#[test]
fn short_sources_are_refused() {
    struct Short(bool);
    impl HalvesKernel for Short {
        type Output = ();

        fn run<L: Halves>(self, lanes: L) {
            let _ = match self.0 {
                true => lanes.load_u8_halves(&[0; HALVES - 1]),
                false => lanes.load_i8_halves(&[0; HALVES - 1]),
            };
        }
    }
    for isa in Isa::available() {
        for unsigned in [false, true] {
            let short = std::panic::catch_unwind(|| dispatch_halves(isa, Short(unsigned)));
            assert!(short.is_err(), "{}", isa.name());
        }
    }
}
