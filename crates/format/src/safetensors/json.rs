//! The two JSON documents of the format, read with caps and without merging what stands twice.
//!
//! The `safetensors` crate is not used here, only as an oracle in tests: it folds entries of the same
//! name into one, fails the whole table for one element type that it does not know, and its errors
//! have no numbers. Syntax, UTF-8 escapes and the depth limit are `serde_json`'s; `serde`'s maps would
//! merge, so maps are visited entry by entry.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::error::{FormatError, Limit, Table, cut};
use crate::limits::{MAX_METADATA_ENTRIES, MAX_MODEL_TENSORS, MAX_SAFETENSORS_DIMS, MAX_TENSORS};

/// The key of a header that is not a tensor.
const METADATA: &str = "__metadata__";

/// Parses `bytes` as one JSON document; `at` names it in errors, `start` is its place in the file.
pub(super) fn parse<'a, T: Deserialize<'a>>(
    bytes: &'a [u8],
    at: &'static str,
    start: u64,
) -> Result<T, FormatError> {
    let text = std::str::from_utf8(bytes).map_err(|e| FormatError::BadUtf8 {
        at: at.to_owned(),
        offset: start + e.valid_up_to() as u64,
    })?;
    // The parser's messages quote what it found, which can be as long as the document.
    serde_json::from_str(text)
        .map_err(|e| FormatError::BadJson { at, message: cut(&e.to_string()) })
}

/// The entries of a map in file order. Beyond `CAP` they are counted and not kept.
pub(super) struct Entries<V, const CAP: u64> {
    pub(super) kept: Vec<(String, V)>,
    pub(super) count: u64,
}

/// Free text.
pub(super) type Texts = Entries<String, MAX_METADATA_ENTRIES>;
/// Tensor name to shard name.
pub(super) type WeightMap = Entries<String, MAX_MODEL_TENSORS>;

/// A header: its tensors and its free text.
pub(super) struct Header {
    pub(super) tensors: Entries<Entry, MAX_TENSORS>,
    pub(super) metadata: Texts,
}

/// What a header says of one tensor. Other fields are not looked at.
#[derive(Deserialize)]
pub(super) struct Entry {
    pub(super) dtype: String,
    pub(super) shape: Dims,
    /// Begin and end in the data section, bytes.
    pub(super) data_offsets: (u64, u64),
}

/// A shape in the order of the file, slowest dimension first. Beyond the cap dimensions are counted
/// and not kept.
pub(super) struct Dims {
    pub(super) kept: Vec<u64>,
    pub(super) count: u64,
}

/// The index of shards. Its `metadata` is not looked at: the total size there counts what the writer
/// thought at the time, and many published ones are wrong.
#[derive(Deserialize)]
pub(super) struct Index {
    pub(super) weight_map: WeightMap,
}

impl<V, const CAP: u64> Entries<V, CAP> {
    fn new() -> Self {
        Entries { kept: Vec::new(), count: 0 }
    }

    fn add<'de, A: MapAccess<'de>>(&mut self, key: String, map: &mut A) -> Result<(), A::Error>
    where
        V: Deserialize<'de>,
    {
        if self.count < CAP {
            self.kept.push((key, map.next_value()?));
        } else {
            map.next_value::<IgnoredAny>()?;
        }
        self.count += 1;
        Ok(())
    }

    /// Refuses more entries than the cap, which is that of `limit`.
    pub(super) fn check(&self, limit: Limit, at: &str) -> Result<(), FormatError> {
        debug_assert_eq!(limit.max(), CAP);
        limit.check(self.count, || at.to_owned())
    }

    /// Refuses an entry that stands twice.
    pub(super) fn refuse_duplicates(&self, table: Table) -> Result<(), FormatError> {
        let mut names: Vec<&str> = self.kept.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(FormatError::Duplicate { table, name: cut(pair[0]) }),
            None => Ok(()),
        }
    }
}

impl<'de, V: Deserialize<'de>, const CAP: u64> Deserialize<'de> for Entries<V, CAP> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit<V, const CAP: u64>(Entries<V, CAP>);

        impl<'de, V: Deserialize<'de>, const CAP: u64> Visitor<'de> for Visit<V, CAP> {
            type Value = Entries<V, CAP>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self::Value, A::Error> {
                while let Some(key) = map.next_key()? {
                    self.0.add(key, &mut map)?;
                }
                Ok(self.0)
            }
        }

        deserializer.deserialize_map(Visit(Entries::new()))
    }
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;

        impl<'de> Visitor<'de> for Visit {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                // `null` stands for no text, as in the reference reader.
                let mut metadata: Option<Option<Texts>> = None;
                let mut tensors = Entries::new();
                while let Some(key) = map.next_key::<String>()? {
                    if key != METADATA {
                        tensors.add(key, &mut map)?;
                    } else if metadata.replace(map.next_value()?).is_some() {
                        return Err(serde::de::Error::duplicate_field(METADATA));
                    }
                }
                Ok(Header { tensors, metadata: metadata.flatten().unwrap_or_else(Texts::new) })
            }
        }

        deserializer.deserialize_map(Visit)
    }
}

impl<'de> Deserialize<'de> for Dims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;

        impl<'de> Visitor<'de> for Visit {
            type Value = Dims;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Dims, A::Error> {
                let mut dims = Dims { kept: Vec::new(), count: 0 };
                while let Some(dim) = seq.next_element()? {
                    if dims.count < MAX_SAFETENSORS_DIMS {
                        dims.kept.push(dim);
                    }
                    dims.count += 1;
                }
                Ok(dims)
            }
        }

        deserializer.deserialize_seq(Visit)
    }
}
