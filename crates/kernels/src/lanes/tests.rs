//! Every lane operation of every tier against scalar Rust.

use super::*;
use crate::test_data::{Random, bits};

/// Values at the edges of f32, and some between.
const VALUES: [f32; 16] = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    0.1,
    3.0e38,
    -3.0e38,
    f32::MIN_POSITIVE,
    1e-45,
    -1e-40,
    8_388_609.0,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    1.000_000_1,
    -77.7,
];

/// The lanes of `v`.
fn lanes_of<L: Lanes>(lanes: L, v: L::V) -> Vec<f32> {
    let mut out = vec![0.0; L::N];
    lanes.store(v, &mut out);
    out
}

/// Equal bits, or both NaN: which NaN an operation on NaN gives is not part of the contract.
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

#[test]
fn same_tells_values_apart() {
    assert!(same(f32::NAN, -f32::NAN) && same(1.0, 1.0));
    assert!(!same(0.0, -0.0) && !same(1.0, 1.000_000_1) && !same(f32::NAN, 1.0));
}

/// Runs the kernel on every tier of this CPU.
fn on_every_tier(kernel: impl Kernel<Output = ()> + Clone) {
    for isa in Isa::available() {
        dispatch(isa, kernel.clone());
    }
}

/// A kernel that is a test: `run` asserts.
macro_rules! lane_test {
    ($name:ident, $lanes:ident: $L:ident, $body:block) => {
        #[test]
        fn $name() {
            #[derive(Clone)]
            struct Test;
            impl Kernel for Test {
                type Output = ();

                #[inline(always)]
                fn run<$L: Lanes>(self, $lanes: $L) $body
            }
            on_every_tier(Test);
        }
    };
}

lane_test!(arithmetic_is_ieee_per_lane, lanes: L, {
    let pairs: Vec<(f32, f32)> =
        VALUES.iter().flat_map(|&a| VALUES.iter().map(move |&b| (a, b))).collect();
    for chunk in pairs.chunks_exact(L::N) {
        let (a, b): (Vec<f32>, Vec<f32>) = chunk.iter().copied().unzip();
        let (va, vb) = (lanes.load(&a), lanes.load(&b));
        let (one, zero) = (lanes.splat(1.0), lanes.splat(0.0));
        let cases = [
            ("add", lanes.add(va, vb), (|a, b| a + b) as fn(f32, f32) -> f32),
            ("sub", lanes.sub(va, vb), |a, b| a - b),
            ("mul", lanes.mul(va, vb), |a, b| a * b),
            ("div", lanes.div(va, vb), |a, b| a / b),
            ("max", lanes.max(va, vb), |a, b| if a > b { a } else { b }),
            ("lt", lanes.select(lanes.lt(va, vb), one, zero), |a, b| f32::from(a < b)),
            ("le", lanes.select(lanes.le(va, vb), one, zero), |a, b| f32::from(a <= b)),
        ];
        for (name, got, want) in cases {
            for (lane, got) in lanes_of(lanes, got).into_iter().enumerate() {
                let want = want(a[lane], b[lane]);
                assert!(same(got, want), "{name}({}, {}) = {got}, not {want}", a[lane], b[lane]);
            }
        }
    }
});

#[test]
fn fma_rounds_once_on_x86_and_twice_on_portable() {
    #[derive(Clone)]
    struct Test(Isa);
    impl Kernel for Test {
        type Output = ();

        #[inline(always)]
        fn run<L: Lanes>(self, lanes: L) {
            let mut random = Random::new(10);
            for _ in 0..1000 {
                let (a, b, c) = (
                    random.uniform(L::N, 2.0),
                    random.uniform(L::N, 2.0),
                    random.uniform(L::N, 2.0),
                );
                let v = lanes.fma(lanes.load(&a), lanes.load(&b), lanes.load(&c));
                for (i, got) in lanes_of(lanes, v).into_iter().enumerate() {
                    let want = if self.0.tier() == Tier::Portable {
                        a[i] * b[i] + c[i]
                    } else {
                        a[i].mul_add(b[i], c[i])
                    };
                    assert_eq!(got.to_bits(), want.to_bits(), "{}", self.0.name());
                }
            }
        }
    }
    for isa in Isa::available() {
        dispatch(isa, Test(isa));
    }
}

lane_test!(selection_ignores_the_lanes_not_chosen, lanes: L, {
    let a = lanes.splat(1.0);
    let b = lanes.splat(f32::NAN);
    for n in 0..=L::N + 2 {
        let got = lanes_of(lanes, lanes.select(lanes.first(n), a, b));
        for (lane, got) in got.into_iter().enumerate() {
            assert_eq!(got == 1.0, lane < n, "lane {lane} of the first {n}");
            assert!(lane < n || got.is_nan());
        }
    }
});

lane_test!(reductions_fold_the_upper_half_onto_the_lower, lanes: L, {
    let mut random = Random::new(11);
    for _ in 0..200 {
        let values = random.uniform(L::N, 1000.0);
        let v = lanes.load(&values);
        let mut folded = values.clone();
        while folded.len() > 1 {
            let upper = folded.split_off(folded.len() / 2);
            for (low, high) in folded.iter_mut().zip(upper) {
                *low += high;
            }
        }
        assert_eq!(lanes.reduce_add(v).to_bits(), folded[0].to_bits());
        let largest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(lanes.reduce_max(v), largest);
    }
    for lane in 0..L::N {
        let mut values = vec![f32::NEG_INFINITY; L::N];
        assert_eq!(lanes.reduce_max(lanes.load(&values)), f32::NEG_INFINITY);
        values[lane] = -3.0;
        assert_eq!(lanes.reduce_max(lanes.load(&values)), -3.0, "lane {lane}");
    }
});

lane_test!(integers_wrap_shift_and_convert, lanes: L, {
    let mut random = Random::new(12);
    for _ in 0..100 {
        let a: Vec<u32> = (0..L::N).map(|_| random.bits() as u32).collect();
        let b: Vec<u32> = (0..L::N).map(|_| random.bits() as u32).collect();
        let float = |i: &[u32]| i.iter().map(|&i| f32::from_bits(i)).collect::<Vec<f32>>();
        let va = lanes.to_bits(lanes.load(&float(&a)));
        let vb = lanes.to_bits(lanes.load(&float(&b)));
        let cases = [
            (lanes.add_i32(va, vb), (|a, b| a.wrapping_add(b)) as fn(u32, u32) -> u32),
            (lanes.shl(va, 23), |a, _| a << 23),
            (lanes.shl(va, 1), |a, _| a << 1),
            (lanes.shr(va, 4), |a, _| a >> 4),
            (lanes.shr(va, 31), |a, _| a >> 31),
            (lanes.and(va, vb), |a, b| a & b),
            (lanes.or(va, vb), |a, b| a | b),
            (lanes.splat_i32(-3), |_, _| (-3i32).cast_unsigned()),
        ];
        for (case, (got, want)) in cases.into_iter().enumerate() {
            let want: Vec<u32> = a.iter().zip(&b).map(|(&a, &b)| want(a, b)).collect();
            assert_eq!(bits(&lanes_of(lanes, lanes.of_bits(got))), want, "case {case}");
        }
        let want: Vec<f32> = a.iter().map(|&a| a.cast_signed() as f32).collect();
        assert_eq!(lanes_of(lanes, lanes.to_f32(va)), want);
    }
});

lane_test!(nibbles_index_a_table_of_signed_bytes, lanes: L, {
    let mut random = Random::new(13);
    for _ in 0..100 {
        let table: [i8; 16] = std::array::from_fn(|_| random.bits() as i8);
        // Longer than a vector: what follows must not matter.
        let bytes: Vec<u8> = (0..L::N + 3).map(|_| random.bits() as u8).collect();
        let (low, high) = lanes.lookup_nibbles(&table, &bytes);
        for (i, byte) in bytes[..L::N].iter().enumerate() {
            let want = (f32::from(table[usize::from(*byte) & 15]), f32::from(table[usize::from(*byte) >> 4]));
            let got = (lanes_of(lanes, lanes.to_f32(low))[i], lanes_of(lanes, lanes.to_f32(high))[i]);
            assert_eq!(got, want, "lane {i}, byte {byte:#04x}");
        }
    }
});

lane_test!(bytes_extend_with_their_sign, lanes: L, {
    let bytes: Vec<u8> = (0..=255).collect();
    for from in 0..=256 - L::N {
        let want: Vec<f32> =
            bytes[from..from + L::N].iter().map(|&b| f32::from(b.cast_signed())).collect();
        assert_eq!(lanes_of(lanes, lanes.to_f32(lanes.load_i8(&bytes[from..]))), want);
        let want: Vec<f32> = bytes[from..from + L::N].iter().map(|&b| f32::from(b)).collect();
        assert_eq!(lanes_of(lanes, lanes.to_f32(lanes.load_u8(&bytes[from..]))), want);
    }
});

lane_test!(partial_loads_and_stores_touch_only_their_part, lanes: L, {
    let values: Vec<f32> = (1..=2 * L::N).map(|i| i as f32).collect();
    for offset in 0..4 {
        for n in 0..=L::N + 1 {
            let part = &values[offset..offset + n];
            let mut want = vec![0.0; L::N];
            let kept = n.min(L::N);
            want[..kept].copy_from_slice(&part[..kept]);
            let v = lanes.load_first(part);
            assert_eq!(lanes_of(lanes, v), want, "{n} from {offset}");

            let mut out = vec![-1.0; 2 * L::N + 4];
            lanes.store_first(v, &mut out[offset..offset + n]);
            assert_eq!(out[offset..offset + kept], want[..kept]);
            assert!(out[..offset].iter().chain(&out[offset + kept..]).all(|&x| x == -1.0));
        }
    }
});

lane_test!(pairs_split_for_every_16_bit_pattern, lanes: L, {
    // Second of each pair: the first's pattern with its bits reversed, so that all occur there too.
    let bytes: Vec<u8> = (0..=u16::MAX)
        .flat_map(|half| [half.to_le_bytes(), half.reverse_bits().to_le_bytes()].concat())
        .collect();
    for (chunk, pairs) in bytes.chunks_exact(4 * L::N).enumerate() {
        let (bf16, f16) = (lanes.load_bf16_pairs(pairs), lanes.load_f16_pairs(pairs));
        let first: Vec<u16> = (0..L::N).map(|lane| (chunk * L::N + lane) as u16).collect();
        let second: Vec<u16> = first.iter().map(|half| half.reverse_bits()).collect();
        for (halves, bf16, f16) in [(first, bf16.0, f16.0), (second, bf16.1, f16.1)] {
            // A bf16 is the upper half of its f32, a signalling NaN's too.
            let want: Vec<u32> = halves.iter().map(|&half| u32::from(half) << 16).collect();
            assert_eq!(bits(&lanes_of(lanes, bf16)), want, "bf16");
            let want: Vec<f32> = halves.iter().map(|&h| half::f16::from_bits(h).to_f32()).collect();
            assert_eq!(bits(&lanes_of(lanes, f16)), bits(&want), "f16");
            for (half, want) in halves.iter().zip(want) {
                let splat = lanes_of(lanes, lanes.splat_f16(half.to_le_bytes()));
                assert_eq!(bits(&splat), vec![want.to_bits(); L::N], "f16 in every lane");
            }
        }
    }
});

lane_test!(transposition_moves_every_element, lanes: L, {
    for (src_stride, dst_stride) in [(L::N, L::N), (L::N + 3, L::N), (L::N, 2 * L::N), (41, 37)] {
        let src: Vec<f32> = (0..(L::N - 1) * src_stride + L::N).map(|i| i as f32).collect();
        let mut dst = vec![-1.0; (L::N - 1) * dst_stride + L::N];
        lanes.transpose(&src, src_stride, &mut dst, dst_stride);
        for (at, &got) in dst.iter().enumerate() {
            let (j, i) = (at / dst_stride, at % dst_stride);
            let want = if i < L::N { src[i * src_stride + j] } else { -1.0 };
            assert_eq!(got, want, "row {j} column {i}");
        }
    }
});

#[test]
fn slices_shorter_than_a_vector_are_refused() {
    /// An operation that reads or writes one element beyond its slice.
    #[derive(Clone, Copy, Debug)]
    enum Short {
        Load,
        Store,
        LoadU8,
        LoadI8,
        LookupNibbles,
        LoadBf16,
        LoadF16,
        LoadBf16Pairs,
        LoadF16Pairs,
        StoreBf16,
        StoreF16,
        TransposeFrom,
        TransposeTo,
    }
    use Short::*;

    impl Kernel for Short {
        type Output = ();

        #[inline(always)]
        fn run<L: Lanes>(self, lanes: L) {
            let mut floats = vec![0.0f32; L::N * L::N];
            let mut bytes = vec![0u8; 4 * L::N - 1];
            let halves = 2 * L::N - 1;
            let v = lanes.splat(0.0);
            let short = L::N * L::N - 1;
            match self {
                Load => drop(lanes_of(lanes, lanes.load(&floats[..L::N - 1]))),
                Store => lanes.store(v, &mut floats[..L::N - 1]),
                LoadU8 => drop(lanes_of(lanes, lanes.to_f32(lanes.load_u8(&bytes[..L::N - 1])))),
                LoadI8 => drop(lanes_of(lanes, lanes.to_f32(lanes.load_i8(&bytes[..L::N - 1])))),
                LookupNibbles => {
                    let (low, _) = lanes.lookup_nibbles(&[0; 16], &bytes[..L::N - 1]);
                    drop(lanes_of(lanes, lanes.to_f32(low)));
                }
                LoadBf16 => drop(lanes_of(lanes, lanes.load_bf16(&bytes[..halves]))),
                LoadF16 => drop(lanes_of(lanes, lanes.load_f16(&bytes[..halves]))),
                LoadBf16Pairs => drop(lanes_of(lanes, lanes.load_bf16_pairs(&bytes).0)),
                LoadF16Pairs => drop(lanes_of(lanes, lanes.load_f16_pairs(&bytes).0)),
                StoreBf16 => lanes.store_bf16(v, &mut bytes[..halves]),
                StoreF16 => lanes.store_f16(v, &mut bytes[..halves]),
                TransposeFrom => {
                    let src = vec![0.0; short];
                    lanes.transpose(&src, L::N, &mut floats, L::N);
                }
                TransposeTo => {
                    let src = vec![0.0; short + 1];
                    lanes.transpose(&src, L::N, &mut floats[..short], L::N);
                }
            }
        }
    }

    for isa in Isa::available() {
        for short in [
            Load,
            Store,
            LoadU8,
            LoadI8,
            LookupNibbles,
            LoadBf16,
            LoadF16,
            LoadBf16Pairs,
            LoadF16Pairs,
            StoreBf16,
            StoreF16,
            TransposeFrom,
            TransposeTo,
        ] {
            let refused = std::panic::catch_unwind(|| dispatch(isa, short)).is_err();
            assert!(refused, "{short:?} on {}", isa.name());
        }
    }
}

lane_test!(the_larger_integer_is_the_larger_signed_one, lanes: L, {
    let mut random = Random::new(17);
    for _ in 0..200 {
        let mut words = || -> Vec<i32> { (0..L::N).map(|_| random.bits() as i32).collect() };
        let (mut a, b) = (words(), words());
        (a[0], a[1]) = (i32::MIN, b[1]);
        // SAFETY: both have N integers.
        let (va, vb) = unsafe { (lanes.load_i32_ptr(a.as_ptr()), lanes.load_i32_ptr(b.as_ptr())) };
        let got = lanes_of(lanes, lanes.of_bits(lanes.max_i32(va, vb)));
        for ((a, b), got) in a.iter().zip(&b).zip(got) {
            assert_eq!(got.to_bits(), *a.max(b) as u32, "{a} {b}");
        }
    }
});

lane_test!(products_of_halves_are_summed_exactly, lanes: L, {
    let mut random = Random::new(16);
    for _ in 0..200 {
        let mut words = || -> Vec<i32> { (0..L::N).map(|_| random.bits() as i32).collect() };
        let (mut a, mut b) = (words(), words());
        // The one sum that does not fit wraps.
        (a[0], b[0]) = (i32::from_ne_bytes([0, 0x80, 0, 0x80]), i32::from_ne_bytes([0, 0x80, 0, 0x80]));
        // SAFETY: both have N integers.
        let (va, vb) = unsafe { (lanes.load_i32_ptr(a.as_ptr()), lanes.load_i32_ptr(b.as_ptr())) };
        let got = lanes_of(lanes, lanes.of_bits(lanes.dot_i16(va, vb)));
        for ((a, b), got) in a.iter().zip(&b).zip(got) {
            let half = |x: i32, high: bool| i64::from((if high { x >> 16 } else { x }) as i16);
            let sum = half(*a, false) * half(*b, false) + half(*a, true) * half(*b, true);
            assert_eq!(got.to_bits(), sum as i32 as u32, "{a:#x} {b:#x}");
        }
        let added = lanes.add_dot_i16(va, va, vb);
        let separate = lanes.add_i32(va, lanes.dot_i16(va, vb));
        let bits = |sum| lanes_of(lanes, lanes.of_bits(sum)).into_iter().map(f32::to_bits);
        assert!(bits(added).eq(bits(separate)));
    }
});
