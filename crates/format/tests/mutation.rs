//! Property tests: whatever is done to a header, the reader answers, with a table that keeps its
//! promises or with an error.

mod raw;
mod sound;

use proptest::prelude::*;
use tidekv_format::{parse_safetensors_header, parse_shard_index};

/// A few thousand cases per property in seconds; `PROPTEST_CASES` sets another number.
fn config() -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(4096),
    }
}

/// Text that JSON readers stumble over, to be put anywhere into a header.
fn fragment() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<u64>().prop_map(|n| n.to_string()),
        (0u64..64).prop_map(|n| n.to_string()),
        prop::sample::select(vec![
            "-1",
            "1e3",
            "1.0",
            "null",
            "true",
            "[]",
            "{}",
            "\"",
            "\\",
            "\\u0000",
            "\\ud800",
            ",",
            ":",
            "[",
            "]",
            "{",
            "}",
            " ",
            "\"a\"",
            "\"F32\"",
            "\"F4\"",
            "\"dtype\":",
            "\"shape\":[0]",
            "\"__metadata__\":{}",
            "..",
            "/",
            ".safetensors",
            "\u{e9}",
        ])
        .prop_map(str::to_owned),
    ]
}

/// `text` with pieces replaced by others, always at character borders.
fn edited(text: &str, edits: &[(prop::sample::Index, usize, String)]) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for (at, removed, inserted) in edits {
        let at = at.index(chars.len() + 1);
        let end = (at + removed).min(chars.len());
        chars.splice(at..end, inserted.chars());
    }
    chars.into_iter().collect()
}

fn edits() -> impl Strategy<Value = Vec<(prop::sample::Index, usize, String)>> {
    prop::collection::vec((any::<prop::sample::Index>(), 0usize..12, fragment()), 1..4)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn bytes_overwritten_anywhere(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = raw::valid();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        sound::gguf_header(&bytes, bytes.len() as u64);
    }

    #[test]
    fn words_set_to_extremes(
        at in any::<prop::sample::Index>(),
        word in prop_oneof![Just(u64::MAX), Just(1 << 63), Just(1 << 32), Just(0), Just(u64::MAX - 31), 0u64..4096],
    ) {
        let mut bytes = raw::valid();
        let at = at.index(bytes.len() - 8);
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        sound::gguf_header(&bytes, bytes.len() as u64);
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
        sound::gguf_header(&mutated, mutated.len() as u64);
    }

    #[test]
    fn noise_behind_a_valid_start(noise in prop::collection::vec(any::<u8>(), 0..512)) {
        let bytes = [b"GGUF\x03\0\0\0\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0".as_slice(), &noise].concat();
        sound::gguf_header(&bytes, bytes.len() as u64);
    }

    #[test]
    fn any_stated_file_length(file_len in any::<u64>()) {
        sound::gguf_header(&raw::valid(), file_len);
    }

    #[test]
    fn safetensors_bytes_overwritten_anywhere(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = raw::safetensors::valid();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        sound::safetensors_header(&bytes, bytes.len() as u64);
    }

    #[test]
    fn safetensors_text_edited(edits in edits(), data_len in 0usize..80) {
        let json = edited(&raw::safetensors::header(&raw::safetensors::entries()), &edits);
        let bytes = raw::safetensors::file(&json, data_len);
        sound::safetensors_header(&bytes, bytes.len() as u64);
    }

    #[test]
    fn safetensors_of_any_stated_length(length in any::<u64>(), file_len in any::<u64>()) {
        let json = raw::safetensors::header(&raw::safetensors::entries());
        sound::safetensors_header(&raw::safetensors::with_length(length, &json, 36), file_len);
        sound::safetensors_header(&raw::safetensors::file(&json, 36), file_len);
    }

    #[test]
    fn safetensors_places_and_shapes(
        tensors in prop::collection::vec((0usize..6, prop::collection::vec(0u64..5, 0..4), 0u64..40, 0u64..40), 0..4),
        tight in any::<bool>(),
    ) {
        let types = ["F32", "BF16", "U8", "F4", "F6_E2M3", "NEW"];
        let mut at = 0;
        let entries: Vec<String> = tensors.iter().enumerate().map(|(i, (ty, shape, begin, end))| {
            let shape = format!("{shape:?}");
            let (begin, end) = if tight { (at, at + end) } else { (*begin, *end) };
            at = end;
            raw::safetensors::entry(&format!("t{i}"), types[*ty], &shape, begin, end)
        }).collect();
        let bytes = raw::safetensors::file(&raw::safetensors::header(&entries), 40);
        sound::safetensors_header(&bytes, bytes.len() as u64);
        let fitting = raw::safetensors::file(&raw::safetensors::header(&entries), at as usize);
        sound::safetensors_header(&fitting, fitting.len() as u64);
    }

    /// Where the reference reader and ours can be compared, they accept the same files and find the
    /// same tensors in the same places.
    #[test]
    fn the_reference_reader_agrees(edits in edits(), data_len in prop_oneof![3 => Just(36usize), 1 => 0usize..80]) {
        let json = edited(&raw::safetensors::header(&raw::safetensors::entries()), &edits);
        compare_with_the_reference(&raw::safetensors::file(&json, data_len));
    }

    #[test]
    fn index_edited(edits in edits()) {
        sound::shard_index(edited(&raw::safetensors::valid_index(), &edits).as_bytes());
    }
}

fn compare_with_the_reference(bytes: &[u8]) {
    // The format asks for a brace as the first byte of the header; the reference skips white space.
    if bytes.get(8) != Some(&b'{') {
        assert!(parse_safetensors_header(bytes, bytes.len() as u64).is_err());
        return;
    }
    let reference = safetensors::SafeTensors::deserialize(bytes);
    match (parse_safetensors_header(bytes, bytes.len() as u64), reference) {
        (Ok(ours), Ok(reference)) => {
            assert_eq!(ours.tensors().len(), reference.len());
            for (name, view) in reference.iter() {
                let tensor = ours.tensor(name).expect("the reference has it");
                let start = tensor.offset as usize;
                let end = start + tensor.n_bytes.expect("a size") as usize;
                assert_eq!(&bytes[start..end], view.data());
                let shape: Vec<u64> = view.shape().iter().rev().map(|&n| n as u64).collect();
                assert_eq!(
                    (&tensor.shape, tensor.ty.to_string()),
                    (&shape, view.dtype().to_string())
                );
            }
        }
        (Err(_), Err(_)) => {}
        (Ok(ours), Err(error)) => {
            // Alone we accept only types that the reference does not know.
            let known = ["F32", "F16", "BF16", "F4"];
            let mut types = ours.tensors().iter().map(|tensor| tensor.ty.to_string());
            let is_new = |ty: String| !known.contains(&ty.as_str());
            assert!(types.any(is_new), "accepted by us alone: {error}");
        }
        (Err(error), Ok(_)) => {
            let ours_alone = ["appears twice", "above the limit", "duplicate field"];
            let error = error.to_string();
            assert!(
                ours_alone.iter().any(|text| error.contains(text)),
                "refused by us alone: {error}"
            );
        }
    }
}

#[test]
fn the_mutations_reach_accepted_and_refused_headers() {
    // The generators above would prove nothing if every case were refused at once.
    let unchanged = raw::safetensors::header(&raw::safetensors::entries());
    assert_eq!(edited(&unchanged, &[]), unchanged);
    let bytes = raw::safetensors::file(&unchanged, 36);
    compare_with_the_reference(&bytes);
    assert!(parse_safetensors_header(&bytes, bytes.len() as u64).is_ok());
    assert!(parse_shard_index(raw::safetensors::valid_index().as_bytes()).is_ok());
}
