//! Integers, scales and offsets give what the decoder of floats gives.

use super::*;
use crate::isa::Isa;
use crate::lanes::MAX_LANES;
use crate::lanes::halves::{HALVES, HalvesKernel, dispatch_halves};
use crate::matvec::fixed::has_ints;
use crate::quant::q4_0::Q4_0;
use crate::quant::q4_1::Q4_1;
use crate::quant::q4_k::Q4K;
use crate::quant::q5_0::Q5_0;
use crate::quant::q5_1::Q5_1;
use crate::quant::q5_k::Q5K;
use crate::quant::q6_k::Q6K;
use crate::quant::q8_0::Q8_0;
use crate::quant::runs::RUN;
use crate::quant::{BlockType, dequantize};
use crate::test_data::Random;

/// The floats of a vector.
fn floats<L: Lanes>(lanes: L, v: L::V) -> [f32; MAX_LANES] {
    let mut floats = [0.0; MAX_LANES];
    lanes.store(v, &mut floats);
    floats
}

/// The elements of a block, as what the sink was given says.
struct Elements {
    ints: Vec<[Option<i16>; RUN]>,
    scales: [[f32; MAX_LANES]; 2],
    offsets: [f32; MAX_LANES],
}

impl<L: Halves> IntSink<L> for Elements {
    fn scale(&mut self, lanes: L, scale: L::V) {
        self.scales = [floats(lanes, scale); 2];
    }

    fn scales(&mut self, lanes: L, scales: [L::V; 2]) {
        self.scales = scales.map(|scales| floats(lanes, scales));
    }

    fn put(&mut self, lanes: L, run: usize, [first, second]: [L::I; 2]) {
        self.put_half(lanes, [run, 0], first);
        self.put_half(lanes, [run, 1], second);
    }

    fn put_half(&mut self, lanes: L, [run, half]: [usize; 2], ints: L::I) {
        let words = floats(lanes, lanes.of_bits(ints)).map(f32::to_bits);
        let ints = words[..L::N].iter().flat_map(|&word| [word as i16, (word >> 16) as i16]);
        for (int, at) in ints.zip(half * HALVES..) {
            assert_eq!(self.ints[run][at].replace(int), None, "run {run} element {at} comes twice");
        }
    }

    fn offset(&mut self, lanes: L, offset: L::V) {
        self.offsets = floats(lanes, offset);
    }

    fn offsets(&mut self, lanes: L, offsets: L::V) {
        self.offsets = floats(lanes, offsets);
    }
}

struct Decode<'a> {
    block: BlockType,
    bytes: &'a [u8],
}

impl Decode<'_> {
    fn of<F, L, const BYTES: usize, const R: usize>(self, lanes: L) -> Vec<f32>
    where
        F: IntFormat<BYTES, R>,
        L: Halves,
    {
        assert!(R == 1 || R == L::N, "one run, or one per lane");
        let (ints, scales) = (vec![[None; RUN]; R], [[f32::NAN; MAX_LANES]; 2]);
        let mut elements = Elements { ints, scales, offsets: [0.0; MAX_LANES] };
        F::decode_ints(lanes, self.bytes.try_into().unwrap(), &mut elements);
        let Elements { ints, scales, offsets } = elements;
        let element = |run: usize, at: usize| {
            let int = ints[run][at].unwrap_or_else(|| panic!("run {run} element {at} is missing"));
            assert!((-128..128).contains(&int), "{int} has more than 8 bits");
            scales[at / HALVES][run] * f32::from(int) + offsets[run]
        };
        (0..R)
            .flat_map(|run| (0..RUN).map(move |at| (run, at)))
            .map(|(run, at)| element(run, at))
            .collect()
    }
}

impl HalvesKernel for Decode<'_> {
    type Output = Vec<f32>;

    fn run<L: Halves>(self, lanes: L) -> Vec<f32> {
        match self.block {
            BlockType::Q4_0 => self.of::<Q4_0, L, _, _>(lanes),
            BlockType::Q4_1 => self.of::<Q4_1, L, _, _>(lanes),
            BlockType::Q5_0 => self.of::<Q5_0, L, _, _>(lanes),
            BlockType::Q5_1 => self.of::<Q5_1, L, _, _>(lanes),
            BlockType::Q8_0 => self.of::<Q8_0, L, _, _>(lanes),
            BlockType::Q4K => self.of::<Q4K, L, _, _>(lanes),
            BlockType::Q5K => self.of::<Q5K, L, _, _>(lanes),
            BlockType::Q6K => self.of::<Q6K, L, _, _>(lanes),
            other => panic!("{other} has no integers"),
        }
    }
}

/// Equal floats (a zero has either sign), or both NaN.
fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b || a.is_nan() && b.is_nan())
}

#[test]
fn same_tells_values_apart() {
    assert!(same(&[0.0, f32::NAN], &[-0.0, f32::NAN]));
    assert!(!same(&[1.0], &[f32::NAN]) && !same(&[1.0], &[1.000_000_1]) && !same(&[1.0], &[]));
}

#[test]
fn integers_times_scales_are_the_decoded_elements() {
    let mut random = Random::new(1);
    for block in BlockType::ALL.into_iter().filter(|&block| has_ints(block)) {
        for case in 0..2000 {
            let bytes: Vec<u8> = match case {
                0 => vec![0; block.block_bytes()],
                1 => vec![0xff; block.block_bytes()],
                _ => (0..block.block_bytes()).map(|_| random.bits() as u8).collect(),
            };
            let mut want = vec![f32::NAN; block.block_len()];
            for isa in Isa::available() {
                dequantize(isa, block, &bytes, &mut want);
                let got = dispatch_halves(isa, Decode { block, bytes: &bytes });
                assert!(same(&got, &want), "{block} case {case} {}: {got:?} {want:?}", isa.name());
            }
        }
    }
}
