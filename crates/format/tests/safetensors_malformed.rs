//! Attacks on the safetensors reader: one test per way a header or an index can be wrong, each naming
//! the error it must get and the numbers that must be in it.

mod raw;

use raw::safetensors::{DATA_LEN, entries, entry, file, header, index, valid, with_length};
use tidekv_format::{
    CutOff, FormatError, LayoutFault, Limit, LooksLike, SafetensorsHeader, ShardFault, Table,
    TensorType, limits, parse_safetensors_header, parse_shard_index,
};

fn parse(bytes: &[u8]) -> Result<SafetensorsHeader, FormatError> {
    parse_safetensors_header(bytes, bytes.len() as u64)
}

/// The valid file with entry `i` (1 is `a`, 2 `b`, 3 `c`) replaced.
fn with_entry(i: usize, entry: String) -> Vec<u8> {
    let mut entries = entries();
    entries[i] = entry;
    file(&header(&entries), DATA_LEN)
}

macro_rules! assert_refused {
    ($bytes:expr, $pattern:pat $(if $guard:expr)?) => {{
        let error = parse(&$bytes).expect_err("a malformed file was accepted");
        assert!(matches!(&error, $pattern $(if $guard)?), "{error:?}");
        error.to_string()
    }};
}

macro_rules! assert_fault {
    ($bytes:expr, $name:expr, $fault:expr) => {
        assert_refused!($bytes, FormatError::BadLayout { tensor, fault } if tensor == $name && *fault == $fault)
    };
}

#[test]
fn the_unbroken_file_is_accepted() {
    let header = parse(&valid()).unwrap();
    assert_eq!(header.metadata()["format"], "pt");
    let a = header.tensor("a").unwrap();
    // [2, 3] in the file: 2 rows of 3.
    assert_eq!((a.shape.as_slice(), a.row_len(), a.ty), ([3, 2].as_slice(), 3, TensorType::F32));
    assert_eq!(a.n_bytes, Some(24));
    let b = header.tensor("b").unwrap();
    assert_eq!((b.ty, b.n_bytes, b.offset), (TensorType::BF16, Some(10), a.offset + 24));
    assert_eq!(header.tensor("c").unwrap().n_elements(), 1);
    assert_eq!(header.tensors().len(), 3);
    assert!(header.tensor("d").is_none());
}

// What is not safetensors at all.

#[test]
fn shorter_than_a_length() {
    for len in 0..8 {
        assert_refused!(valid()[..len], FormatError::TooShort { actual, needed: 8 } if *actual == len as u64);
    }
}

#[test]
fn foreign_files_are_named() {
    let cases: &[(&[u8], LooksLike)] = &[
        (b"<!DOCTYPE html><html>", LooksLike::HtmlPage),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", LooksLike::GitLfsPointer),
        (b"{\"error\":\"Repository not found\"}", LooksLike::Json),
        (b"GGUF\x03\0\0\0\0\0\0\0", LooksLike::Gguf),
        (b"PK\x03\x04\0\0\0\0\0\0", LooksLike::Zip),
        (b"\x80\x02}q\0\0\0\0\0\0", LooksLike::Pickle),
        (b"\x03\0\0\0\0\0\0\0 {}", LooksLike::Unknown([3, 0, 0, 0])),
        (b"\x10\0\0\0\0\0\0\0[1,2,3]", LooksLike::Unknown([16, 0, 0, 0])),
        (b"\0\0\0\0\0\0\0\0\0\0\0\0", LooksLike::Unknown([0; 4])),
    ];
    for (bytes, expected) in cases {
        let message =
            assert_refused!(*bytes, FormatError::NotSafetensors(found) if found == expected);
        assert!(message.starts_with("not a safetensors model: "), "{message}");
    }
}

#[test]
fn a_header_length_that_looks_like_another_magic_is_not_mistaken() {
    // 640 = 0x0280, the first bytes of a pickle.
    let mut json = header(&entries());
    json.push_str(&" ".repeat(640 - json.len()));
    assert_eq!(file(&json, DATA_LEN)[..2], [0x80, 2]);
    parse(&file(&json, DATA_LEN)).unwrap();
}

// Lengths and counts.

#[test]
fn header_longer_than_the_limit() {
    for length in [limits::MAX_SAFETENSORS_HEADER_BYTES + 1, u64::MAX, u64::MAX - 7] {
        assert_refused!(
            with_length(length, "{}", 0),
            FormatError::TooLarge { limit: Limit::SafetensorsHeaderBytes, value, .. } if *value == length
        );
    }
}

#[test]
fn header_longer_than_the_file() {
    let bytes = with_length(1000, "{}", 0);
    let message = assert_refused!(
        bytes,
        FormatError::Truncated { expected: 1008, actual: 10, missing: CutOff::Header(_) }
    );
    assert!(message.contains("at least 1,008 bytes, have 10"), "{message}");
}

#[test]
fn every_truncated_length_is_refused_with_both_sizes() {
    let whole = valid();
    for len in 8..whole.len() {
        let message = assert_refused!(
            whole[..len],
            FormatError::Truncated { expected, actual, .. }
                if *actual == len as u64 && expected > actual
        );
        assert!(message.contains(&format!("have {len}")), "{message}");
    }
}

#[test]
fn truncated_data_names_the_first_tensor_that_is_not_whole() {
    let whole = valid();
    assert_refused!(
        whole[..whole.len() - 5],
        FormatError::Truncated { expected, missing: CutOff::Tensor(name), .. }
            if *expected == whole.len() as u64 && name == "b"
    );
}

#[test]
fn bytes_behind_the_last_tensor() {
    let mut bytes = valid();
    let expected = bytes.len() as u64;
    bytes.extend([0; 3]);
    let message = assert_refused!(bytes, FormatError::Trailing { expected: e, actual } if (*e, *actual) == (expected, expected + 3));
    assert!(message.starts_with("3 bytes follow the last tensor"), "{message}");
}

#[test]
fn too_many_tensors() {
    let n = limits::MAX_TENSORS + 1;
    let entries: Vec<String> = (0..n).map(|i| entry(&i.to_string(), "F32", "[0]", 0, 0)).collect();
    assert_refused!(file(&header(&entries), 0), FormatError::TooLarge { limit: Limit::Tensors, value, .. } if *value == n);
}

#[test]
fn too_many_metadata_entries() {
    let n = limits::MAX_METADATA_ENTRIES + 1;
    let texts: Vec<String> = (0..n).map(|i| format!("\"{i}\":\"\"")).collect();
    let json = format!(r#"{{"__metadata__":{{{}}}}}"#, texts.join(","));
    assert_refused!(file(&json, 0), FormatError::TooLarge { limit: Limit::MetadataEntries, value, .. } if *value == n);
}

#[test]
fn too_many_dimensions() {
    let bytes = with_entry(3, entry("c", "F16", "[1,1,1,1,1,1,1,1,1]", 34, 36));
    assert_refused!(bytes, FormatError::TooLarge { at, limit: Limit::SafetensorsDims, value: 9 } if at.contains("`c`"));
    parse(&with_entry(3, entry("c", "F16", "[1,1,1,1,1,1,1,1]", 34, 36))).unwrap();
}

#[test]
fn tensor_name_too_long() {
    let bytes = with_entry(3, entry(&"n".repeat(257), "F16", "[]", 34, 36));
    let message = assert_refused!(
        bytes,
        FormatError::TooLarge { limit: Limit::TensorNameBytes, value: 257, .. }
    );
    assert!(message.contains("nnn..."), "cut: {message}");
}

#[test]
fn type_name_too_long() {
    let bytes = with_entry(3, entry("c", &"T".repeat(17), "[]", 34, 36));
    assert_refused!(bytes, FormatError::TooLarge { limit: Limit::DtypeBytes, value: 17, .. });
}

// The text.

#[test]
fn header_not_utf8() {
    let mut bytes = valid();
    bytes[10] = 0xff;
    assert_refused!(bytes, FormatError::BadUtf8 { offset: 10, .. });
}

#[test]
fn header_not_json() {
    for json in ["{", "{\"a\"}", "{}x", "{\"a\":{}} {}", "{'a':1}", "{\"a\":NaN}", "{,}"] {
        let message = assert_refused!(file(json, 0), FormatError::BadJson { .. });
        assert!(message.contains("line 1 column"), "{message}");
    }
}

#[test]
fn header_nested_a_million_deep() {
    let nest = |open: &str, close: &str| [open.repeat(1 << 20), close.repeat(1 << 20)].concat();
    for (open, close) in [("[", "]"), ("{\"a\":", "}"), ("[", "")] {
        // In a field that is skipped, in the place of a shape, and of a tensor.
        for json in [
            format!(r#"{{"a":{{"x":{}}}}}"#, nest(open, close)),
            format!(r#"{{"a":{{"shape":{}}}}}"#, nest(open, close)),
            format!(r#"{{"a":{}}}"#, nest(open, close)),
        ] {
            assert_refused!(file(&json, 0), FormatError::BadJson { .. });
        }
    }
}

#[test]
fn entries_of_the_wrong_kind() {
    let of = |value: &str| with_entry(3, format!("\"c\":{value}"));
    for value in [
        "7",
        "null",
        "{}",
        r#"{"dtype":"F16","shape":[]}"#,
        r#"{"dtype":"F16","data_offsets":[34,36]}"#,
        r#"{"shape":[],"data_offsets":[34,36]}"#,
        r#"{"dtype":16,"shape":[],"data_offsets":[34,36]}"#,
        r#"{"dtype":"F16","shape":1,"data_offsets":[34,36]}"#,
        r#"{"dtype":"F16","shape":[-1],"data_offsets":[34,36]}"#,
        r#"{"dtype":"F16","shape":[1.0],"data_offsets":[34,36]}"#,
        r#"{"dtype":"F16","shape":[18446744073709551616],"data_offsets":[34,36]}"#,
        r#"{"dtype":"F16","shape":[],"data_offsets":[34]}"#,
        r#"{"dtype":"F16","shape":[],"data_offsets":[34,36,38]}"#,
        r#"{"dtype":"F16","shape":[],"data_offsets":[34,-36]}"#,
        r#"{"dtype":"F16","dtype":"F16","shape":[],"data_offsets":[34,36]}"#,
    ] {
        let message = assert_refused!(of(value), FormatError::BadJson { .. });
        assert!(message.contains("the safetensors header is not valid"), "{message}");
    }
    parse(&of(r#"{"dtype":"F16","shape":[],"data_offsets":[34,36],"new":[{}]}"#)).unwrap();
}

#[test]
fn metadata_of_the_wrong_kind() {
    parse(&file(r#"{"__metadata__":null}"#, 0)).unwrap();
    for metadata in ["[]", "7", r#"{"a":1}"#, r#"{"a":{"b":"c"}}"#] {
        let json = format!(r#"{{"__metadata__":{metadata}}}"#);
        assert_refused!(file(&json, 0), FormatError::BadJson { .. });
    }
}

#[test]
fn a_long_text_is_not_repeated_in_the_message() {
    let bytes = with_entry(3, format!("\"c\":\"{}\"", "x".repeat(1 << 20)));
    let message = assert_refused!(bytes, FormatError::BadJson { .. });
    assert!(message.len() < 400, "{} bytes", message.len());
}

#[test]
fn duplicate_tensor() {
    let mut entries = entries();
    entries.push(entries[3].clone());
    assert_refused!(
        file(&header(&entries), DATA_LEN),
        FormatError::Duplicate { table: Table::Tensors, name } if name == "c"
    );
    // The same name, written in two ways.
    let same = entry("\\u0063", "F16", "[]", 36, 38);
    entries[4] = same;
    assert_refused!(
        file(&header(&entries), DATA_LEN + 2),
        FormatError::Duplicate { table: Table::Tensors, name } if name == "c"
    );
}

#[test]
fn duplicate_metadata() {
    let json = r#"{"__metadata__":{"a":"1","a":"2"}}"#;
    assert_refused!(file(json, 0), FormatError::Duplicate { table: Table::Metadata, name } if name == "a");
    let json = r#"{"__metadata__":{},"__metadata__":{}}"#;
    assert_refused!(file(json, 0), FormatError::BadJson { .. });
}

// Places and sizes.

#[test]
fn shape_and_place_of_different_sizes() {
    let fault = LayoutFault::WrongSize {
        shape: vec![3, 2],
        ty: TensorType::F16,
        needed_bits: 96,
        bytes: 24,
    };
    let message = assert_fault!(with_entry(1, entry("a", "F16", "[2,3]", 0, 24)), "a", fault);
    assert!(message.contains("needs 12 bytes and the header gives it 24"), "{message}");
    for (dtype, shape) in [("F64", "[2,3]"), ("F32", "[2,4]"), ("F32", "[0]"), ("F4", "[47]")] {
        let bytes = with_entry(1, entry("a", dtype, shape, 0, 24));
        assert_refused!(bytes, FormatError::BadLayout { fault: LayoutFault::WrongSize { .. }, .. });
    }
}

#[test]
fn overlapping_tensors() {
    let fault = LayoutFault::Overlaps { other: "a".into(), bytes: 4 };
    assert_fault!(with_entry(2, entry("b", "BF16", "[7]", 20, 34)), "b", fault);
    // Of two in the same place the one named first counts as the first.
    let fault = LayoutFault::Overlaps { other: "a".into(), bytes: 10 };
    assert_fault!(with_entry(1, entry("a", "BF16", "[5]", 24, 34)), "b", fault);
}

#[test]
fn holes() {
    let fault = LayoutFault::Hole { bytes: 2 };
    assert_fault!(with_entry(2, entry("b", "BF16", "[4]", 26, 34)), "b", fault);
    let message = assert_fault!(with_entry(1, entry("a", "BF16", "[11]", 2, 24)), "a", fault);
    assert!(message.contains("2 bytes before it belong to no tensor"), "{message}");
}

#[test]
fn a_tensor_that_ends_before_it_begins() {
    let fault = LayoutFault::Reversed { begin: 34, end: 24 };
    assert_fault!(with_entry(2, entry("b", "BF16", "[5]", 34, 24)), "b", fault);
}

#[test]
fn element_count_overflows() {
    for shape in ["[4294967296,4294967296,2]", "[4294967296,4294967296,0]"] {
        let bytes = with_entry(1, entry("a", "F32", shape, 0, 24));
        assert_refused!(bytes, FormatError::Overflow { tensor, .. } if tensor == "a");
        // Also where the size of an element is not known.
        let bytes = with_entry(1, entry("a", "NEW", shape, 0, 24));
        assert_refused!(bytes, FormatError::Overflow { .. });
    }
}

#[test]
fn bit_count_overflows() {
    let bytes = with_entry(1, entry("a", "I8", "[4611686018427387904]", 0, 1 << 62));
    assert_refused!(bytes, FormatError::Overflow { .. });
}

#[test]
fn offsets_near_the_end_of_u64() {
    let bytes = with_entry(3, entry("c", "F16", "[]", u64::MAX - 2, u64::MAX));
    assert_refused!(bytes, FormatError::Overflow { offset, .. } if *offset == u64::MAX - 2);
}

#[test]
fn tensor_beyond_the_file() {
    let bytes = with_entry(3, entry("c", "F16", "[1099511627776]", 34, 34 + (2 << 40)));
    let message = assert_refused!(
        bytes,
        FormatError::Truncated { missing: CutOff::Tensor(name), .. } if name == "c"
    );
    assert!(message.contains("2,199,023,255"), "{message}");
}

// What must not be refused.

#[test]
fn types_that_cannot_be_used_do_not_fail_the_table() {
    for (dtype, shape) in
        [("F8_E4M3", "[2]"), ("U8", "[2]"), ("F4", "[4]"), ("NOT_YET_KNOWN", "[2,9]")]
    {
        let header = parse(&with_entry(3, entry("c", dtype, shape, 34, 36))).unwrap();
        let c = header.tensor("c").unwrap();
        assert_eq!((c.ty.to_string().as_str(), c.n_bytes), (dtype, Some(2)));
        assert_eq!(c.ty.block(), None);
        assert_eq!(header.tensor("a").unwrap().n_bytes, Some(24));
    }
}

#[test]
fn an_unpadded_header_is_accepted() {
    // Writers pad only since 2023; every reader of tensor data takes any alignment.
    let json = header(&entries());
    for padding in 0..8 {
        let json = format!("{json}{}", " ".repeat(padding));
        let bytes = file(&json, DATA_LEN);
        assert_eq!(parse(&bytes).unwrap().tensor("a").unwrap().offset, 8 + json.len() as u64);
    }
}

#[test]
fn other_orders_and_empty_tensors_are_accepted() {
    let mut entries = entries();
    entries.reverse();
    entries.push(entry("empty", "F32", "[0,7]", 24, 24));
    entries.push(entry("empty_end", "F32", "[0]", 36, 36));
    let header = parse(&file(&header(&entries), DATA_LEN)).unwrap();
    assert_eq!(header.tensors()[0].name, "c");
    assert_eq!(header.tensor("empty").unwrap().n_bytes, Some(0));
}

#[test]
fn a_file_without_tensors_is_accepted() {
    assert!(parse(&file("{}", 0)).unwrap().tensors().is_empty());
    assert_refused!(file("{}", 1), FormatError::Trailing { expected: 10, actual: 11 });
}

// The index of shards.

fn refused_index(text: &str) -> FormatError {
    parse_shard_index(text.as_bytes()).expect_err("a malformed index was accepted")
}

#[test]
fn the_unbroken_index_is_accepted() {
    let index = parse_shard_index(raw::safetensors::valid_index().as_bytes()).unwrap();
    assert_eq!(
        index.shards(),
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    );
    assert_eq!(index.tensors().collect::<Vec<_>>(), [("a", 0), ("b", 0), ("c", 1)]);
}

#[test]
fn index_shards_outside_of_the_directory() {
    for name in [
        "../model.safetensors",
        "..",
        "/etc/model.safetensors",
        "sub/model.safetensors",
        "sub\\\\model.safetensors",
        "C:model.safetensors",
        "model.safetensors:stream.safetensors",
        ".safetensors",
        ".hidden.safetensors",
        "..\\u002fmodel.safetensors",
        "a\\u0000.safetensors",
        "model.bin",
        "",
    ] {
        let error = refused_index(&index(&[("a", name)]));
        assert!(
            matches!(error, FormatError::Shards(ShardFault::UnsafeName { .. })),
            "{name}: {error:?}"
        );
    }
}

#[test]
fn index_shard_name_too_long() {
    let name = "m".repeat(255) + ".safetensors";
    assert!(matches!(
        refused_index(&index(&[("a", &name)])),
        FormatError::TooLarge { limit: Limit::FileNameBytes, value: 267, .. }
    ));
}

#[test]
fn index_with_too_many_shards() {
    let n = limits::MAX_FILES + 1;
    let names: Vec<(String, String)> =
        (0..n).map(|i| (format!("t{i}"), format!("{i}.safetensors"))).collect();
    let entries: Vec<(&str, &str)> =
        names.iter().map(|(tensor, shard)| (tensor.as_str(), shard.as_str())).collect();
    assert!(matches!(
        refused_index(&index(&entries)),
        FormatError::TooLarge { limit: Limit::Files, value, .. } if value == n
    ));
}

#[test]
fn index_duplicate_tensor() {
    let error = refused_index(&index(&[("a", "1.safetensors"), ("a", "2.safetensors")]));
    assert!(
        matches!(&error, FormatError::Duplicate { table: Table::WeightMap, name } if name == "a"),
        "{error:?}"
    );
}

#[test]
fn index_without_a_tensor() {
    assert!(matches!(refused_index(&index(&[])), FormatError::Shards(ShardFault::EmptyIndex)));
}

#[test]
fn index_not_json() {
    for text in ["", "<html>", "{}", "[]", r#"{"weight_map":[]}"#, r#"{"weight_map":{"a":1}}"#] {
        let error = refused_index(text);
        assert!(matches!(error, FormatError::BadJson { .. }), "{text}: {error:?}");
    }
    let error = parse_shard_index(b"{\"weight_map\":{\"\xff").unwrap_err();
    assert!(matches!(error, FormatError::BadUtf8 { offset: 16, .. }), "{error:?}");
}
