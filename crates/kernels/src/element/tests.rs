use super::*;
use crate::test_data::{Random, bits};

const TYPES: [Element; 3] = [Element::Bf16, Element::F16, Element::F32];

/// What `half` stores for `x`.
fn oracle(element: Element, x: f32) -> Vec<u8> {
    match element {
        Element::Bf16 => half::bf16::from_f32(x).to_le_bytes().to_vec(),
        Element::F16 => half::f16::from_f32(x).to_le_bytes().to_vec(),
        Element::F32 => x.to_le_bytes().to_vec(),
    }
}

fn stored(isa: Isa, element: Element, src: &[f32]) -> Vec<u8> {
    let mut dst = vec![0; src.len() * element.bytes()];
    store(isa, element, src, &mut dst);
    dst
}

fn loaded(isa: Isa, element: Element, src: &[u8]) -> Vec<f32> {
    let mut dst = vec![0.0; src.len() / element.bytes()];
    load(isa, element, src, &mut dst);
    dst
}

/// All 65,536 patterns of a 16-bit type.
fn every_half() -> Vec<u8> {
    (0..=u16::MAX).flat_map(u16::to_le_bytes).collect()
}

#[test]
fn every_16_bit_pattern_widens_exactly() {
    for isa in Isa::available() {
        for element in [Element::Bf16, Element::F16] {
            let vectors = loaded(isa, element, &every_half());
            for (half, x) in (0..=u16::MAX).zip(vectors) {
                // One element alone takes the path of tails.
                let alone = loaded(isa, element, &half.to_le_bytes())[0];
                assert_eq!(x.to_bits(), alone.to_bits(), "{} {element:?} {half:#06x}", isa.name());
                let want = match element {
                    // The upper half of its f32, a signalling NaN's too.
                    Element::Bf16 => f32::from_bits(u32::from(half) << 16),
                    _ => half::f16::from_bits(half).to_f32(),
                };
                assert_eq!(x.to_bits(), want.to_bits(), "{} {element:?} {half:#06x}", isa.name());
            }
        }
    }
}

#[test]
fn every_16_bit_pattern_survives_a_round_trip() {
    for isa in Isa::available() {
        for element in [Element::Bf16, Element::F16] {
            let back = stored(isa, element, &loaded(isa, element, &every_half()));
            for (half, back) in (0..=u16::MAX).zip(back.chunks_exact(2)) {
                let back = u16::from_le_bytes([back[0], back[1]]);
                let quiet = match element {
                    Element::Bf16 if half & 0x7fff > 0x7f80 => half | 0x40,
                    Element::F16 if half & 0x7fff > 0x7c00 => half | 0x200,
                    _ => half,
                };
                assert_eq!(back, quiet, "{} {element:?} {half:#06x}", isa.name());
            }
        }
    }
}

/// Every 16-bit value, the midpoint above it and the midpoint's neighbours, of both types; edges;
/// random bits.
fn hard_to_round() -> Vec<f32> {
    let around = |bits: u32, half_unit: u32| {
        [0, 1, half_unit - 1, half_unit, half_unit + 1].map(|add| f32::from_bits(bits + add))
    };
    let mut values: Vec<f32> = Vec::new();
    for half in 0..=u16::MAX {
        values.extend(around(u32::from(half) << 16, 0x8000));
        let f16 = half::f16::from_bits(half);
        values.extend(around(f16.to_f32().to_bits(), 0x1000));
        // Between subnormals of f16 the midpoint is not a fixed bit pattern away.
        values.push(f16.to_f32() + f32::powi(2.0, -25));
    }
    values.extend([65_504.0, 65_519.996, 65_520.0, -65_520.0, f32::MAX, f32::MIN, f32::INFINITY]);
    values.extend([1e-45, -1e-45, 2f32.powi(-25), 2f32.powi(-25) * 1.000_001, f32::NEG_INFINITY]);
    let mut random = Random::new(20);
    values.extend((0..200_000).map(|_| f32::from_bits(random.bits() as u32)));
    values
}

#[test]
fn storing_rounds_like_the_oracle() {
    let values = hard_to_round();
    for isa in Isa::available() {
        for element in TYPES {
            let got = stored(isa, element, &values);
            for (&x, got) in values.iter().zip(got.chunks_exact(element.bytes())) {
                let name = format!("{} {element:?} {x:e} {:#010x}", isa.name(), x.to_bits());
                assert_eq!(got, oracle(element, x), "{name}");
                assert_eq!(got, stored(isa, element, &[x]), "{name} alone");
            }
        }
    }
}

#[test]
fn every_length_and_alignment_converts_only_its_own_elements() {
    let values = Random::new(21).uniform(80, 100.0);
    for isa in Isa::available() {
        for element in TYPES {
            for offset in 0..3 {
                for n in 0..=66 {
                    let src = &values[offset..offset + n];
                    let mut bytes = vec![0xaa; offset + n * element.bytes() + 5];
                    let end = offset + n * element.bytes();
                    store(isa, element, src, &mut bytes[offset..end]);
                    let want: Vec<u8> = src.iter().flat_map(|&x| oracle(element, x)).collect();
                    assert_eq!(bytes[offset..end], want);
                    assert!(bytes[..offset].iter().chain(&bytes[end..]).all(|&b| b == 0xaa));

                    let mut back = vec![-1.0; offset + n + 5];
                    load(isa, element, &bytes[offset..end], &mut back[offset..offset + n]);
                    let again = stored(isa, element, &back[offset..offset + n]);
                    assert_eq!(again, want);
                    assert!(back[..offset].iter().chain(&back[offset + n..]).all(|&x| x == -1.0));
                }
            }
        }
    }
}

#[test]
fn f32_keeps_every_bit() {
    let values = [f32::from_bits(0x7f80_0001), f32::from_bits(0xffc1_2345), -0.0, 1e-45];
    for isa in Isa::available() {
        let back = loaded(isa, Element::F32, &stored(isa, Element::F32, &values));
        assert_eq!(bits(&back), bits(&values));
    }
}

#[test]
fn one_value_that_is_not_finite_is_found_anywhere() {
    for isa in Isa::available() {
        for n in [0, 1, 7, 8, 9, 31, 33, 1023, 1024, 1025, 2500] {
            let mut values = Random::new(22).uniform(n, 1e38);
            assert!(all_finite(isa, &values), "{} {n}", isa.name());
            values.iter_mut().for_each(|x| *x = x.signum() * f32::MAX);
            assert!(all_finite(isa, &values), "{} {n} of the largest", isa.name());
            for at in 0..n {
                for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN] {
                    let good = std::mem::replace(&mut values[at], bad);
                    assert!(!all_finite(isa, &values), "{} {bad} at {at} of {n}", isa.name());
                    values[at] = good;
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "bytes for 3 Bf16")]
fn storing_to_a_wrong_length_is_refused() {
    store(Isa::detect(), Element::Bf16, &[0.0; 3], &mut [0; 5]);
}

#[test]
#[should_panic(expected = "bytes for 3 F16")]
fn loading_from_a_wrong_length_is_refused() {
    load(Isa::detect(), Element::F16, &[0; 7], &mut [0.0; 3]);
}
