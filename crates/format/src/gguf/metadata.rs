//! The key-value part of a header: what a model says about itself.

use std::collections::HashMap;

use crate::error::{FormatError, Table};

/// One metadata value, in the type the file gave it.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the variants are GGUF's value types")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array value: one type for all elements, arrays of arrays included.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the variants are GGUF's value types")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<String>),
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Value {
    /// The type as messages name it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::U8(_) => "u8",
            Value::I8(_) => "i8",
            Value::U16(_) => "u16",
            Value::I16(_) => "i16",
            Value::U32(_) => "u32",
            Value::I32(_) => "i32",
            Value::F32(_) => "f32",
            Value::Bool(_) => "bool",
            Value::String(_) => "string",
            Value::Array(array) => array.type_name(),
            Value::U64(_) => "u64",
            Value::I64(_) => "i64",
            Value::F64(_) => "f64",
        }
    }

    /// The integer as i128, which holds every u64 and i64.
    fn integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            _ => return None,
        })
    }
}

impl Array {
    /// The type as messages name it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Array::U8(_) => "array of u8",
            Array::I8(_) => "array of i8",
            Array::U16(_) => "array of u16",
            Array::I16(_) => "array of i16",
            Array::U32(_) => "array of u32",
            Array::I32(_) => "array of i32",
            Array::F32(_) => "array of f32",
            Array::Bool(_) => "array of bool",
            Array::String(_) => "array of string",
            Array::Array(_) => "array of arrays",
            Array::U64(_) => "array of u64",
            Array::I64(_) => "array of i64",
            Array::F64(_) => "array of f64",
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(v) => v.len(),
            Array::I8(v) => v.len(),
            Array::U16(v) => v.len(),
            Array::I16(v) => v.len(),
            Array::U32(v) => v.len(),
            Array::I32(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::String(v) => v.len(),
            Array::Array(v) => v.len(),
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F64(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Metadata in file order, with lookup by key.
///
/// The typed accessors return `Ok(None)` for a key that is not there and
/// [`FormatError::BadMetadata`] for one with a value of another kind: a default may stand in for the
/// first, never for the second. Writers disagree about integer widths, so every integer accessor
/// takes every integer type and checks the value's range.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl Metadata {
    /// Adds an entry; a key that is already there is an error.
    pub(crate) fn insert(&mut self, key: String, value: Value) -> Result<(), FormatError> {
        if self.index.contains_key(&key) {
            return Err(FormatError::Duplicate { table: Table::Metadata, name: key });
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        Ok(())
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All entries, in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of `key`, of whatever type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.entries[i].1)
    }

    /// A non-negative integer of any width and signedness.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, FormatError> {
        self.typed(key, "a non-negative integer", |value| {
            let integer = value.integer()?;
            u64::try_from(integer).ok()
        })
    }

    /// A non-negative integer below 2^32, of any width and signedness: counts and token ids.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, FormatError> {
        self.typed(key, "a non-negative integer below 2^32", |value| {
            u32::try_from(value.integer()?).ok()
        })
    }

    /// A float; an f64 is rounded.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, FormatError> {
        self.typed(key, "a float", |value| match *value {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        })
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, FormatError> {
        self.typed(key, "a bool", |value| match *value {
            Value::Bool(v) => Some(v),
            _ => None,
        })
    }

    /// A string.
    pub fn str(&self, key: &str) -> Result<Option<&str>, FormatError> {
        self.typed(key, "a string", |value| match value {
            Value::String(v) => Some(v.as_str()),
            _ => None,
        })
    }

    /// An array of strings: tokens, merges.
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>, FormatError> {
        self.typed(key, "an array of string", |value| match value {
            Value::Array(Array::String(v)) => Some(v.as_slice()),
            _ => None,
        })
    }

    /// An array of i32: token types.
    pub fn i32s(&self, key: &str) -> Result<Option<&[i32]>, FormatError> {
        self.typed(key, "an array of i32", |value| match value {
            Value::Array(Array::I32(v)) => Some(v.as_slice()),
            _ => None,
        })
    }

    /// An array of f32: token scores.
    pub fn f32s(&self, key: &str) -> Result<Option<&[f32]>, FormatError> {
        self.typed(key, "an array of f32", |value| match value {
            Value::Array(Array::F32(v)) => Some(v.as_slice()),
            _ => None,
        })
    }

    /// An array of non-negative integers of any width: values per layer.
    pub fn u64s(&self, key: &str) -> Result<Option<Vec<u64>>, FormatError> {
        fn all<T: Copy + TryInto<u64>>(values: &[T]) -> Option<Vec<u64>> {
            values.iter().map(|&v| v.try_into().ok()).collect()
        }
        self.typed(key, "an array of non-negative integers", |value| match value {
            Value::Array(Array::U8(v)) => all(v),
            Value::Array(Array::I8(v)) => all(v),
            Value::Array(Array::U16(v)) => all(v),
            Value::Array(Array::I16(v)) => all(v),
            Value::Array(Array::U32(v)) => all(v),
            Value::Array(Array::I32(v)) => all(v),
            Value::Array(Array::U64(v)) => all(v),
            Value::Array(Array::I64(v)) => all(v),
            _ => None,
        })
    }

    /// `read` applied to the value of `key`; its `None` becomes an error that names both sides.
    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, FormatError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match read(value) {
            Some(typed) => Ok(Some(typed)),
            None => Err(FormatError::BadMetadata {
                key: key.to_owned(),
                expected,
                found: describe(value),
            }),
        }
    }
}

/// The type of a value, and the value itself where it is a number.
fn describe(value: &Value) -> String {
    match value.integer() {
        Some(integer) => format!("{} {integer}", value.type_name()),
        None => value.type_name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(entries: &[(&str, Value)]) -> Metadata {
        let mut metadata = Metadata::default();
        for (key, value) in entries {
            metadata.insert((*key).to_owned(), value.clone()).unwrap();
        }
        metadata
    }

    fn assert_bad<T: std::fmt::Debug>(result: Result<Option<T>, FormatError>, text: &str) {
        assert_eq!(result.unwrap_err().to_string(), text);
    }

    #[test]
    fn entries_keep_their_order() {
        let m = metadata(&[("z", Value::U8(1)), ("a", Value::Bool(true)), ("m", Value::F64(0.5))]);
        assert_eq!(m.iter().map(|(key, _)| key).collect::<Vec<_>>(), ["z", "a", "m"]);
        assert_eq!(m.len(), 3);
        assert_eq!(m.get("a"), Some(&Value::Bool(true)));
    }

    #[test]
    fn integers_of_every_type_are_read_if_they_fit() {
        let values = [
            Value::U8(7),
            Value::I8(7),
            Value::U16(7),
            Value::I16(7),
            Value::U32(7),
            Value::I32(7),
            Value::U64(7),
            Value::I64(7),
        ];
        for value in values {
            let m = metadata(&[("n", value)]);
            assert_eq!(m.u64("n").unwrap(), Some(7));
            assert_eq!(m.u32("n").unwrap(), Some(7));
        }
        let m = metadata(&[("n", Value::U64(u64::MAX))]);
        assert_eq!(m.u64("n").unwrap(), Some(u64::MAX));
        assert_bad(
            m.u32("n"),
            "metadata `n`: expected a non-negative integer below 2^32, found u64 18446744073709551615",
        );
    }

    #[test]
    fn a_missing_key_is_none_and_a_wrong_type_is_an_error() {
        let m = metadata(&[("s", Value::String("x".into())), ("i", Value::I32(-1))]);
        assert_eq!(m.u64("absent").unwrap(), None);
        assert_eq!(m.str("s").unwrap(), Some("x"));
        assert_bad(m.u64("s"), "metadata `s`: expected a non-negative integer, found string");
        assert_bad(m.u64("i"), "metadata `i`: expected a non-negative integer, found i32 -1");
        assert_bad(m.f32("i"), "metadata `i`: expected a float, found i32 -1");
        assert_bad(m.bool("i"), "metadata `i`: expected a bool, found i32 -1");
        assert_bad(m.str("i"), "metadata `i`: expected a string, found i32 -1");
    }

    #[test]
    fn arrays_are_typed() {
        let m = metadata(&[
            ("strings", Value::Array(Array::String(vec!["a".into(), "b".into()]))),
            ("i32s", Value::Array(Array::I32(vec![1, -2]))),
            ("f32s", Value::Array(Array::F32(vec![0.5]))),
            ("u16s", Value::Array(Array::U16(vec![3, 4]))),
        ]);
        assert_eq!(m.strings("strings").unwrap().unwrap(), ["a", "b"]);
        assert_eq!(m.i32s("i32s").unwrap().unwrap(), [1, -2]);
        assert_eq!(m.f32s("f32s").unwrap().unwrap(), [0.5]);
        assert_eq!(m.u64s("u16s").unwrap().unwrap(), [3, 4]);
        assert_bad(
            m.strings("i32s"),
            "metadata `i32s`: expected an array of string, found array of i32",
        );
        assert_bad(m.i32s("f32s"), "metadata `f32s`: expected an array of i32, found array of f32");
        assert_bad(
            m.f32s("strings"),
            "metadata `strings`: expected an array of f32, found array of string",
        );
        assert_bad(
            m.u64s("i32s"),
            "metadata `i32s`: expected an array of non-negative integers, found array of i32",
        );
    }
}
