//! `GgufFile` over real files: views, truncation at every length, files that change or cannot be read.

mod raw;

use std::fs::{self, OpenOptions};
use std::io::Write;

use raw::Raw;
use tidekv_format::{FormatError, GgufFile, TensorType};

#[test]
fn views_are_the_bytes_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.gguf");
    fs::write(&path, raw::valid()).unwrap();
    let file = GgufFile::open(&path).unwrap();
    assert_eq!(file.path(), path);
    assert_eq!(file.version(), 3);
    assert_eq!(file.file_len(), raw::valid().len() as u64);
    let (a, b) = (file.tensor("a").unwrap(), file.tensor("b").unwrap());
    assert_eq!((a.ty, a.row_len(), a.n_elements()), (TensorType::F32, 8, 8));
    assert_eq!(file.bytes(a), (0..32).collect::<Vec<u8>>());
    assert_eq!(file.bytes(b), (32..68).collect::<Vec<u8>>());
    assert!(file.tensor("c").is_none());
}

#[test]
fn a_tensor_of_unknown_type_reaches_to_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("unknown.gguf");
    for (unknown, expected) in [(0, 0..32), (1, 32..68)] {
        let mut raw = Raw::valid();
        raw.tensors[unknown].ty = 4711;
        fs::write(&path, raw.bytes()).unwrap();
        let file = GgufFile::open(&path).unwrap();
        assert_eq!(file.bytes(&file.tensors()[unknown]), expected.collect::<Vec<u8>>());
    }
}

#[test]
#[should_panic(expected = "tensor `b` is not of this file")]
fn a_tensor_of_another_file_is_a_contract_violation() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("long.gguf");
    fs::write(&path, raw::valid()).unwrap();
    let long = GgufFile::open(&path).unwrap();
    let short_path = dir.path().join("short.gguf");
    fs::write(&short_path, Raw { tensors: vec![], data_len: None, ..Raw::valid() }.bytes())
        .unwrap();
    let short = GgufFile::open(&short_path).unwrap();
    short.bytes(long.tensor("b").unwrap());
}

#[test]
fn every_truncated_length_is_refused_with_both_sizes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut.gguf");
    let whole = raw::valid();
    let header_len = Raw::valid().bytes_without_padding().len();
    for len in 0..whole.len() {
        fs::write(&path, &whole[..len]).unwrap();
        match GgufFile::open(&path).expect_err("a truncated file was accepted") {
            FormatError::TooShort { actual, needed: 24 } if len < 24 => {
                assert_eq!(actual, len as u64)
            }
            error @ FormatError::Truncated { expected, actual, .. } => {
                assert_eq!(actual, len as u64);
                assert!(expected > actual, "{error}");
                // Once the header is whole the full size is known exactly.
                assert!(len < header_len || expected == whole.len() as u64, "{error}");
                assert!(error.to_string().contains(&format!("have {len}")), "{error}");
            }
            error => panic!("at {len} bytes: {error:?}"),
        }
    }
    fs::write(&path, &whole).unwrap();
    GgufFile::open(&path).unwrap();
}

#[test]
fn missing_padding_at_the_end_is_not_truncation() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("padded.gguf");
    let mut padded = raw::valid();
    padded.extend([0; 28]);
    fs::write(&path, padded).unwrap();
    let file = GgufFile::open(&path).unwrap();
    assert_eq!(file.bytes(file.tensor("b").unwrap()).len(), 36);
}

#[test]
fn a_missing_file_and_a_directory_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let missing = GgufFile::open(&dir.path().join("absent.gguf")).unwrap_err();
    assert!(missing.to_string().contains("absent.gguf"), "{missing}");
    let directory = GgufFile::open(dir.path()).unwrap_err();
    assert!(matches!(directory, FormatError::Io { .. }), "{directory:?}");
}

#[test]
fn an_empty_file_is_too_short() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("empty.gguf");
    fs::write(&path, []).unwrap();
    assert!(matches!(GgufFile::open(&path).unwrap_err(), FormatError::TooShort { actual: 0, .. }));
}

#[test]
fn a_file_that_grows_or_shrinks_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("changing.gguf");
    let whole = raw::valid();
    fs::write(&path, &whole).unwrap();
    let file = GgufFile::open(&path).unwrap();
    file.verify_unchanged().unwrap();
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"more").unwrap();
    let n = whole.len() as u64;
    match file.verify_unchanged().unwrap_err() {
        FormatError::Changed { opened, now, .. } => assert_eq!((opened, now), (n, n + 4)),
        error => panic!("{error:?}"),
    }
}
