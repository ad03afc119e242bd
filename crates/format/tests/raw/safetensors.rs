//! Safetensors bytes with every field open to be wrong.

/// A file of this JSON text and `data_len` counting bytes; the length in front is the text's.
pub fn file(json: &str, data_len: usize) -> Vec<u8> {
    with_length(json.len() as u64, json, data_len)
}

/// The same, with any length in front.
pub fn with_length(length: u64, json: &str, data_len: usize) -> Vec<u8> {
    let data = (0..data_len).map(|i| i as u8);
    length.to_le_bytes().into_iter().chain(json.bytes()).chain(data).collect()
}

/// An entry of a header.
pub fn entry(name: &str, dtype: &str, shape: &str, begin: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
}

/// A header of these entries.
pub fn header(entries: &[String]) -> String {
    format!("{{{}}}", entries.join(","))
}

/// The entries of [`valid`]: `a` F32 [2, 3] in 24 bytes, `b` BF16 [5] in 10, `c` F16 scalar in 2.
pub fn entries() -> Vec<String> {
    vec![
        r#""__metadata__":{"format":"pt"}"#.to_owned(),
        entry("a", "F32", "[2,3]", 0, 24),
        entry("b", "BF16", "[5]", 24, 34),
        entry("c", "F16", "[]", 34, 36),
    ]
}

/// Data bytes of [`valid`].
pub const DATA_LEN: usize = 36;

/// A header as the reference writer makes them, in small.
pub fn valid() -> Vec<u8> {
    let mut json = header(&entries());
    json.push_str(&" ".repeat(json.len().next_multiple_of(8) - json.len()));
    file(&json, DATA_LEN)
}

/// An index of two shards.
pub fn valid_index() -> String {
    index(&[
        ("a", "model-00001-of-00002.safetensors"),
        ("b", "model-00001-of-00002.safetensors"),
        ("c", "model-00002-of-00002.safetensors"),
    ])
}

/// An index of these entries; names are put between the quotes as they are.
pub fn index(entries: &[(&str, &str)]) -> String {
    let map: Vec<String> =
        entries.iter().map(|(tensor, shard)| format!(r#""{tensor}":"{shard}""#)).collect();
    format!(r#"{{"metadata":{{"total_size":36}},"weight_map":{{{}}}}}"#, map.join(","))
}
