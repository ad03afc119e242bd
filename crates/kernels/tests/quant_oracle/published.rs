//! `IQ4_NL`, `IQ4_XS` and `MXFP4` in scalar code: GGML's structs (`ggml-common.h`), its published
//! values, and the OCP Microscaling Formats (MX) Specification 1.0.
//!
//! Every value is computed in f64, where all products are exact, and rounded to f32 at the end.

/// The sixteen values of `IQ4_NL` and `IQ4_XS`.
const IQ4_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// `struct { f16 d; u8 qs[16]; }`
pub(crate) fn iq4_nl(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(18)
        .flat_map(|block| {
            let d = binary16(block, 0);
            codes(&block[2..]).map(move |q| (d * f64::from(IQ4_VALUES[q])) as f32)
        })
        .collect()
}

/// `struct { f16 d; u16 scales_h; u8 scales_l[4]; u8 qs[128]; }`
pub(crate) fn iq4_xs(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(136)
        .flat_map(|block| {
            let d = binary16(block, 0);
            let scales_h = u16::from_le_bytes([block[2], block[3]]);
            (0..8).flat_map(move |group| {
                let both = block[4 + group / 2];
                let low = if group % 2 == 0 { both & 15 } else { both >> 4 };
                let high = (scales_h >> (2 * group)) % 4;
                let scale = f64::from(low) + 16.0 * f64::from(high) - 32.0;
                let quants = &block[8 + 16 * group..][..16];
                codes(quants).map(move |q| (d * scale * f64::from(IQ4_VALUES[q])) as f32)
            })
        })
        .collect()
}

/// `struct { u8 e; u8 qs[16]; }`: an E8M0 scale and E2M1 elements.
pub(crate) fn mxfp4(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(17)
        .flat_map(|block| {
            let scale =
                if block[0] == 0xff { f64::NAN } else { 2f64.powi(i32::from(block[0]) - 127) };
            codes(&block[1..]).map(move |q| (scale * e2m1(q)) as f32)
        })
        .collect()
}

/// A sign bit, two exponent bits of bias 1 and one mantissa bit; exponent 0 is subnormal. Zero has
/// no sign, as in GGML's table.
fn e2m1(code: usize) -> f64 {
    let sign = if code & 8 == 0 { 1.0 } else { -1.0 };
    let mantissa = (code & 1) as f64 / 2.0;
    match code >> 1 & 3 {
        0 => sign * mantissa + 0.0,
        exponent => sign * 2f64.powi(exponent as i32 - 1) * (1.0 + mantissa),
    }
}

/// The codes of a run in element order: the low nibbles of its 16 bytes, then the high ones.
fn codes(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let low = bytes.iter().map(|byte| usize::from(byte & 15));
    low.chain(bytes.iter().map(|byte| usize::from(byte >> 4)))
}

fn binary16(bytes: &[u8], at: usize) -> f64 {
    half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f64()
}

#[test]
fn values_are_those_of_ggmls_python_package() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/quant/decoded.json");
    let text = std::fs::read_to_string(path).unwrap();
    let cases: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(cases.len(), 3);
    for case in cases {
        let name = case["type"].as_str().unwrap();
        let list = |key: &str| case[key].as_array().unwrap().clone();
        let bytes: Vec<u8> =
            list("bytes").iter().map(|byte| byte.as_u64().unwrap() as u8).collect();
        let values: Vec<f32> =
            list("values").iter().map(|value| value.as_f64().unwrap() as f32).collect();
        let decoded = match name {
            "IQ4_NL" => iq4_nl(&bytes),
            "IQ4_XS" => iq4_xs(&bytes),
            "MXFP4" => mxfp4(&bytes),
            _ => panic!("no decoder of {name}"),
        };
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
        assert_eq!(bits(&decoded), bits(&values), "{name}");
    }
}

#[test]
fn a_block_of_iq4_nl_by_hand() {
    // d = 0.5; the low nibbles count up from 0, the high ones down from 15.
    let mut block = vec![0x00, 0x38];
    block.extend((0..16u8).map(|j| j | (15 - j) << 4));
    let up = [
        -63.5, -52.0, -41.5, -32.5, -24.5, -17.5, -11.0, -5.0, 0.5, 6.5, 12.5, 19.0, 26.5, 34.5,
        44.5, 56.5,
    ];
    let down = up.into_iter().rev();
    assert_eq!(iq4_nl(&block), up.into_iter().chain(down).collect::<Vec<f32>>());
}

#[test]
fn a_block_of_iq4_xs_by_hand() {
    // d = 2. Scales of the groups: 33, 0, 63, 32, 16, 31, 47, 1; less 32: 1, -32, 31, 0, -16, -1,
    // 15, -31. In binary, upper two bits and lower four: 10 0001, 00 0000, 11 1111, 10 0000,
    // 01 0000, 01 1111, 10 1111, 00 0001.
    let mut block = vec![0x00, 0x40];
    block.extend(0b_00_10_01_01_10_11_00_10_u16.to_le_bytes());
    block.extend([0x01, 0x0f, 0xf0, 0x1f]);
    // Code 8, value 1, in the low nibbles; code 7, value -10, in the high ones.
    block.extend([0x78; 128]);
    let scales = [2.0, -64.0, 62.0, 0.0, -32.0, -2.0, 30.0, -62.0];
    let expected = scales.into_iter().flat_map(|scale| [[scale; 16], [-10.0 * scale; 16]]);
    assert_eq!(iq4_xs(&block), expected.flatten().collect::<Vec<f32>>());
}

#[test]
fn a_block_of_mxfp4_by_hand() {
    // Every code in order, twice.
    let nibbles = (0..16u8).map(|j| j | j << 4);
    let block = |e: u8| std::iter::once(e).chain(nibbles.clone()).collect::<Vec<u8>>();
    let ones =
        [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
    let times = |scale: f32| [ones, ones].concat().iter().map(|x| x * scale).collect::<Vec<f32>>();
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
    assert_eq!(bits(&mxfp4(&block(127))), bits(&times(1.0)));
    assert_eq!(bits(&mxfp4(&block(130))), bits(&times(8.0)));
    // 2^-127, by its bits: a subnormal. 2^127 times 2, 3, 4 and 6 is beyond f32.
    assert_eq!(bits(&mxfp4(&block(0))), bits(&times(f32::from_bits(1 << 22))));
    assert_eq!(mxfp4(&block(0))[1], 2f32.powi(-128));
    assert_eq!(mxfp4(&block(254))[2..5], [2f32.powi(127), 1.5 * 2f32.powi(127), f32::INFINITY]);
    assert!(mxfp4(&block(255)).iter().all(|x| x.is_nan()));
}
