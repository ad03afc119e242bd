//! Property tests: whatever is done to a header, the reader answers, with a table that keeps its
//! promises or with an error.

mod raw;

use proptest::prelude::*;
use tidekv_format::parse_header;

/// What a parsed table promises whoever reads tensor data with it.
fn assert_sound(bytes: &[u8], file_len: u64) {
    let Ok(header) = parse_header(bytes, file_len) else {
        return;
    };
    let mut extents: Vec<(u64, u64)> = Vec::new();
    for tensor in header.tensors() {
        assert_eq!(header.tensor(&tensor.name), Some(tensor));
        let end =
            tensor.offset.checked_add(tensor.n_bytes.unwrap_or(0)).expect("an end that overflows");
        assert!(end <= file_len, "`{}` ends at {end} of {file_len}", tensor.name);
        if end > tensor.offset {
            extents.push((tensor.offset, end));
        }
    }
    extents.sort_unstable();
    assert!(extents.windows(2).all(|pair| pair[0].1 <= pair[1].0), "tensors overlap: {extents:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn bytes_overwritten_anywhere(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = raw::valid();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        assert_sound(&bytes, bytes.len() as u64);
    }

    #[test]
    fn words_set_to_extremes(
        at in any::<prop::sample::Index>(),
        word in prop_oneof![Just(u64::MAX), Just(1 << 63), Just(1 << 32), Just(0), Just(u64::MAX - 31), 0u64..4096],
    ) {
        let mut bytes = raw::valid();
        let at = at.index(bytes.len() - 8);
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        assert_sound(&bytes, bytes.len() as u64);
    }

    #[test]
    fn pieces_cut_out_doubled_or_appended(
        a in any::<prop::sample::Index>(),
        b in any::<prop::sample::Index>(),
        doubled in any::<bool>(),
        tail in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let bytes = raw::valid();
        let (a, b) = (a.index(bytes.len()), b.index(bytes.len()));
        let (start, end) = (a.min(b), a.max(b));
        let (kept, resumes) = if doubled { (end, start) } else { (start, end) };
        let mutated = [&bytes[..kept], &bytes[resumes..], &tail].concat();
        assert_sound(&mutated, mutated.len() as u64);
    }

    #[test]
    fn noise_behind_a_valid_start(noise in prop::collection::vec(any::<u8>(), 0..512)) {
        let bytes = [b"GGUF\x03\0\0\0\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0".as_slice(), &noise].concat();
        assert_sound(&bytes, bytes.len() as u64);
    }

    #[test]
    fn any_stated_file_length(file_len in any::<u64>()) {
        assert_sound(&raw::valid(), file_len);
    }
}
