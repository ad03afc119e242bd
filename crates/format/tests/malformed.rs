//! Attacks on the GGUF reader: one test per way a header can be wrong, each naming the error it
//! must get and the numbers that must be in it.

mod raw;

use raw::{Raw, array_of, string};
use tidekv_format::{
    CutOff, FormatError, GgufHeader, LayoutFault, Limit, LooksLike, Table, limits, parse_header,
};

fn parse(bytes: &[u8]) -> Result<GgufHeader, FormatError> {
    parse_header(bytes, bytes.len() as u64)
}

fn refused(bytes: &[u8]) -> FormatError {
    parse(bytes).expect_err("a malformed file was accepted")
}

macro_rules! assert_refused {
    ($bytes:expr, $pattern:pat $(if $guard:expr)?) => {{
        let error = refused(&$bytes);
        assert!(matches!(&error, $pattern $(if $guard)?), "{error:?}");
        error.to_string()
    }};
}

#[test]
fn the_unbroken_file_is_accepted() {
    let header = parse(&raw::valid()).unwrap();
    assert_eq!(header.version(), 3);
    assert_eq!(header.metadata().str("general.architecture").unwrap(), Some("llama"));
    assert_eq!(header.metadata().strings("tokenizer.ggml.tokens").unwrap().unwrap().len(), 3);
    assert_eq!(header.tensors().len(), 2);
    assert_eq!(header.tensor("b").unwrap().n_bytes, Some(36));
}

#[test]
fn version_2_is_accepted() {
    assert_eq!(parse(&Raw { version: 2, ..Raw::valid() }.bytes()).unwrap().version(), 2);
}

// What is not GGUF at all.

#[test]
fn empty_file() {
    assert_refused!([], FormatError::TooShort { actual: 0, needed: 24 });
}

#[test]
fn shorter_than_the_fixed_part() {
    assert_refused!(raw::valid()[..3], FormatError::TooShort { actual: 3, .. });
    assert_refused!(raw::valid()[..23], FormatError::TooShort { actual: 23, .. });
}

#[test]
fn foreign_files_are_named() {
    let mut safetensors = 4096u64.to_le_bytes().to_vec();
    safetensors.extend(b"{\"__metadata__\":{}}");
    let cases: &[(&[u8], LooksLike, &str)] = &[
        (b"\r\n <!DOCTYPE html><html>", LooksLike::HtmlPage, "HTML page"),
        (b"\xef\xbb\xbf<html lang=en>", LooksLike::HtmlPage, "HTML page"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00",
            LooksLike::GitLfsPointer,
            "git lfs pull",
        ),
        (b"{\"error\":\"Repository not found\"}", LooksLike::Json, "JSON"),
        (&safetensors, LooksLike::Safetensors, "safetensors"),
        (b"PK\x03\x04\0\0", LooksLike::Zip, "zip"),
        (b"\x80\x02}q\0", LooksLike::Pickle, "pickle"),
        (b"\x1f\x8b\x08\0", LooksLike::Gzip, "gzip"),
        (b"tjgg\x03\0\0\0", LooksLike::LegacyGgml, "before GGUF"),
        (b"\x7fELF\x02", LooksLike::Unknown(*b"\x7fELF"), "[7f, 45, 4c, 46]"),
        (b"ab", LooksLike::Unknown(*b"ab\0\0"), "begins with the bytes [61, 62, 00, 00]"),
    ];
    for (bytes, expected, text) in cases {
        let message = assert_refused!(*bytes, FormatError::NotGguf(found) if found == expected);
        assert!(message.contains(text), "{message}");
    }
}

#[test]
fn big_endian() {
    let bytes = Raw { version: 3u32.swap_bytes(), ..Raw::valid() }.bytes();
    let message = assert_refused!(bytes, FormatError::NotGguf(LooksLike::BigEndianGguf));
    assert!(message.contains("big-endian"), "{message}");
}

#[test]
fn version_1_and_version_4() {
    for version in [0, 1, 4] {
        let bytes = Raw { version, ..Raw::valid() }.bytes();
        assert_refused!(bytes, FormatError::UnsupportedVersion { version: v } if *v == version);
    }
}

// Counts and lengths.

#[test]
fn too_many_tensors() {
    let bytes = Raw { n_tensors: Some(u64::MAX), ..Raw::valid() }.bytes();
    assert_refused!(bytes, FormatError::TooLarge { limit: Limit::Tensors, value: u64::MAX, .. });
}

#[test]
fn too_many_metadata_entries() {
    let n = limits::MAX_METADATA_ENTRIES + 1;
    let bytes = Raw { n_entries: Some(n), ..Raw::valid() }.bytes();
    assert_refused!(bytes, FormatError::TooLarge { limit: Limit::MetadataEntries, value, .. } if *value == n);
}

#[test]
fn more_entries_than_the_file_can_hold() {
    let bytes = Raw { n_entries: Some(limits::MAX_METADATA_ENTRIES), ..Raw::valid() }.bytes();
    let expected = 24 + 13 * limits::MAX_METADATA_ENTRIES;
    assert_refused!(bytes, FormatError::Truncated { expected: e, missing: CutOff::Header(_), .. } if *e == expected);
}

#[test]
fn more_tensors_than_the_file_can_hold() {
    let bytes = Raw { n_tensors: Some(limits::MAX_TENSORS), ..Raw::valid() }.bytes();
    let message = assert_refused!(bytes, FormatError::Truncated { missing: CutOff::Header(_), .. });
    assert!(message.contains("at least"), "{message}");
}

#[test]
fn key_too_long() {
    let mut entry = (limits::MAX_KEY_BYTES + 1).to_le_bytes().to_vec();
    entry.extend([b'k'; 100]);
    assert_refused!(
        Raw::with_entry(entry).bytes(),
        FormatError::TooLarge { limit: Limit::KeyBytes, value: 65_536, .. }
    );
}

#[test]
fn string_too_long() {
    let mut value = 8u32.to_le_bytes().to_vec();
    value.extend((u64::MAX).to_le_bytes());
    let bytes = Raw::with_value("k", value).bytes();
    assert_refused!(bytes, FormatError::TooLarge { at, limit: Limit::StringBytes, value: u64::MAX } if at.contains("`k`"));
}

#[test]
fn string_longer_than_the_file() {
    let mut value = 8u32.to_le_bytes().to_vec();
    value.extend((1u64 << 20).to_le_bytes());
    let bytes = Raw::with_value("k", value).bytes();
    assert_refused!(bytes, FormatError::Truncated { expected, missing: CutOff::Header(_), .. } if *expected > 1 << 20);
}

#[test]
fn array_too_long() {
    let bytes = Raw::with_value("k", array_of(0, u64::MAX, &[])).bytes();
    assert_refused!(bytes, FormatError::TooLarge { limit: Limit::ArrayLen, value: u64::MAX, .. });
}

#[test]
fn array_longer_than_the_file() {
    for element in [0, 4, 7, 8, 9, 12] {
        let bytes = Raw::with_value("k", array_of(element, limits::MAX_ARRAY_LEN, &[])).bytes();
        let error = refused(&bytes);
        assert!(
            matches!(error, FormatError::Truncated { missing: CutOff::Header(_), .. }),
            "{element}: {error:?}"
        );
    }
}

#[test]
fn arrays_nested_too_deep() {
    let nested = |depth: u64| {
        let innermost = array_of(0, 1, &[7]);
        let value = (1..depth).fold(innermost, |inner, _| array_of(9, 1, &inner[4..]));
        Raw::with_value("k", value).bytes()
    };
    parse(&nested(limits::MAX_ARRAY_DEPTH)).unwrap();
    let depth = limits::MAX_ARRAY_DEPTH + 1;
    assert_refused!(nested(depth), FormatError::TooLarge { limit: Limit::ArrayDepth, value, .. } if *value == depth);
}

#[test]
fn too_many_dimensions() {
    let mut file = Raw::valid();
    file.tensors[0].shape = vec![1; 5];
    assert_refused!(file.bytes(), FormatError::TooLarge { at, limit: Limit::Dims, value: 5 } if at.contains("`a`"));
}

#[test]
fn tensor_name_too_long() {
    let mut file = Raw::valid();
    file.tensors[0].name = "n".repeat(257).into_bytes();
    assert_refused!(
        file.bytes(),
        FormatError::TooLarge { limit: Limit::TensorNameBytes, value: 257, .. }
    );
}

// Values.

#[test]
fn duplicate_key() {
    let mut file = Raw::valid();
    file.entries.push(file.entries[0].clone());
    assert_refused!(file.bytes(), FormatError::Duplicate { table: Table::Metadata, name } if name == "general.architecture");
}

#[test]
fn duplicate_tensor() {
    let mut file = Raw::valid();
    file.tensors[1].name = b"a".to_vec();
    assert_refused!(file.bytes(), FormatError::Duplicate { table: Table::Tensors, name } if name == "a");
}

#[test]
fn key_not_utf8() {
    let mut entry = string(b"a\xffb");
    entry.extend([0, 0, 0, 0, 1]);
    // The fixed part, the length and `a` precede the bad byte.
    let file = Raw { entries: vec![entry], ..Raw::valid() };
    assert_refused!(file.bytes(), FormatError::BadUtf8 { offset: 33, .. });
}

#[test]
fn string_value_not_utf8() {
    let value = [8u32.to_le_bytes().to_vec(), string(b"\xc3\x28")].concat();
    assert_refused!(Raw::with_value("k", value).bytes(), FormatError::BadUtf8 { at, .. } if at.contains("`k`"));
}

#[test]
fn tensor_name_not_utf8() {
    let mut file = Raw::valid();
    file.tensors[1].name = b"\x80".to_vec();
    assert_refused!(file.bytes(), FormatError::BadUtf8 { at, .. } if at.contains("row 1"));
}

#[test]
fn bad_bool() {
    let value = [7u32.to_le_bytes().as_slice(), &[2]].concat();
    assert_refused!(Raw::with_value("k", value).bytes(), FormatError::BadBool { value: 2, .. });
    let bytes = Raw::with_value("k", array_of(7, 3, &[0, 1, 255])).bytes();
    assert_refused!(bytes, FormatError::BadBool { value: 255, .. });
}

#[test]
fn bad_value_type() {
    let value = [13u32.to_le_bytes().as_slice(), &[0; 8]].concat();
    assert_refused!(Raw::with_value("k", value).bytes(), FormatError::BadValueType { id: 13, .. });
    let bytes = Raw::with_value("k", array_of(99, 1, &[0; 8])).bytes();
    assert_refused!(bytes, FormatError::BadValueType { id: 99, .. });
}

#[test]
fn alignment_not_a_power_of_two() {
    for alignment in [0u32, 1, 4, 12, 33] {
        let value = [4u32.to_le_bytes(), alignment.to_le_bytes()].concat();
        let message = assert_refused!(
            Raw::with_value("general.alignment", value).bytes(),
            FormatError::BadMetadata { found, .. } if *found == alignment.to_string()
        );
        assert!(message.contains("a power of two of at least 8"), "{message}");
    }
}

#[test]
fn alignment_not_an_integer() {
    let value = [8u32.to_le_bytes().to_vec(), string(b"32")].concat();
    let bytes = Raw::with_value("general.alignment", value).bytes();
    assert_refused!(bytes, FormatError::BadMetadata { found, .. } if found == "string");
}

#[test]
fn a_part_of_a_split_model_is_a_sound_header() {
    let mut file = Raw::valid();
    file.push_u16("split.no", 2);
    file.push_u16("split.count", 4);
    parse(&file.bytes()).unwrap();
}

// Places and sizes.

#[test]
fn misaligned_offset() {
    let mut file = Raw::valid();
    file.tensors[1].offset += 4;
    let fault = LayoutFault::Misaligned { offset: 36, alignment: 32 };
    assert_refused!(file.bytes(), FormatError::BadLayout { tensor, fault: f } if tensor == "b" && *f == fault);
}

#[test]
fn overlapping_tensors() {
    let mut file = Raw::valid();
    file.tensors[1].offset = 0;
    // `a` is the shorter of the two and is taken as the first.
    let fault = LayoutFault::Overlaps { other: "a".into(), bytes: 32 };
    assert_refused!(file.bytes(), FormatError::BadLayout { tensor, fault: f } if tensor == "b" && *f == fault);
}

#[test]
fn ragged_row() {
    let mut file = Raw::valid();
    file.tensors[1].shape = vec![33];
    let fault = LayoutFault::RaggedRow { row: 33, block: 32 };
    // `b` as Q4_0, whose blocks have 32 elements.
    file.tensors[1].ty = 2;
    assert_refused!(file.bytes(), FormatError::BadLayout { fault: f, .. } if *f == fault);
}

#[test]
fn element_count_overflows() {
    let mut file = Raw::valid();
    file.tensors[0].shape = vec![1 << 32, 1 << 32, 2];
    assert_refused!(file.bytes(), FormatError::Overflow { tensor, .. } if tensor == "a");
    // A zero must not hide the overflow in front of it.
    file.tensors[0].shape = vec![1 << 32, 1 << 32, 0];
    assert_refused!(file.bytes(), FormatError::Overflow { .. });
}

#[test]
fn byte_count_overflows() {
    let mut file = Raw::valid();
    file.tensors[0].shape = vec![u64::MAX / 2];
    assert_refused!(file.bytes(), FormatError::Overflow { tensor, .. } if tensor == "a");
}

#[test]
fn offset_near_the_end_of_u64() {
    let mut file = Raw::valid();
    file.tensors[1].offset = u64::MAX - 31;
    assert_refused!(file.bytes(), FormatError::Overflow { offset, .. } if *offset == u64::MAX - 31);
}

#[test]
fn tensor_beyond_the_file() {
    let mut file = Raw::valid();
    file.tensors[1].shape = vec![1 << 40];
    let message = assert_refused!(
        file.bytes(),
        FormatError::Truncated { expected, missing: CutOff::Tensor(name), .. } if *expected > 4 << 40 && name == "b"
    );
    assert!(message.contains("cut off") && message.contains("4,398,046,511"), "{message}");
}

// What must not be refused.

#[test]
fn an_unknown_type_does_not_fail_the_table() {
    let mut file = Raw::valid();
    file.tensors[0].ty = 4711;
    let header = parse(&file.bytes()).unwrap();
    assert_eq!(header.tensor("a").unwrap().n_bytes, None);
    assert_eq!(header.tensor("a").unwrap().ty.to_string(), "unknown type 4711");
    assert_eq!(header.tensor("b").unwrap().n_bytes, Some(36));
}

#[test]
fn an_unknown_type_beyond_the_file_is_truncated() {
    let mut file = Raw::valid();
    file.tensors[1].ty = 4711;
    file.data_len = Some(32);
    assert_refused!(file.bytes(), FormatError::Truncated { missing: CutOff::Tensor(name), .. } if name == "b");
}

#[test]
fn gaps_other_orders_and_empty_tensors_are_accepted() {
    let mut file = Raw::valid();
    file.tensors.swap(0, 1);
    file.tensors.push(raw::RawTensor {
        name: b"empty".to_vec(),
        shape: vec![0, 5],
        ty: 0,
        offset: 32,
    });
    file.tensors.push(raw::RawTensor {
        name: b"scalar".to_vec(),
        shape: vec![],
        ty: 0,
        offset: 4096,
    });
    file.data_len = Some(4100);
    let header = parse(&file.bytes()).unwrap();
    assert_eq!(header.tensor("empty").unwrap().n_bytes, Some(0));
    assert_eq!(header.tensor("scalar").unwrap().n_bytes, Some(4));
    assert_eq!(header.tensors()[0].name, "b");
}

#[test]
fn a_file_of_metadata_alone_is_accepted() {
    let mut file = Raw::valid();
    file.tensors.clear();
    file.data_len = Some(0);
    assert!(parse(&file.bytes_without_padding()).unwrap().tensors().is_empty());
}
