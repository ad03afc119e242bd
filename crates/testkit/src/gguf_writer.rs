//! Writes well-formed GGUF files, whole or in parts, data streamed from closures.
//!
//! The format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tidekv_format::{Array, TensorType, Value};

use crate::streamed::{StreamedTensor, TensorList, write_file};

/// Tensor data begins at multiples of this, the format's default.
pub const ALIGNMENT: u64 = 32;

/// A GGUF file to be: metadata and tensors in the order they will have.
pub struct GgufWriter {
    version: u32,
    metadata: Vec<(String, Value)>,
    tensors: TensorList,
}

impl Default for GgufWriter {
    fn default() -> Self {
        GgufWriter::new()
    }
}

impl GgufWriter {
    /// An empty file of version 3.
    pub fn new() -> GgufWriter {
        GgufWriter { version: 3, metadata: Vec::new(), tensors: TensorList::default() }
    }

    /// Sets the version, 2 or 3; both have the same layout.
    pub fn set_version(&mut self, version: u32) -> &mut Self {
        assert!((2..=3).contains(&version), "GGUF version {version}");
        self.version = version;
        self
    }

    /// Gives `key` a value: in its old place if it has one, else at the end.
    pub fn set(&mut self, key: &str, value: Value) -> &mut Self {
        match self.metadata.iter_mut().find(|(k, _)| k == key) {
            Some(entry) => entry.1 = value,
            None => self.metadata.push((key.to_owned(), value)),
        }
        self
    }

    /// Takes `key` away.
    ///
    /// # Panics
    ///
    /// If it is not there: a test that removes nothing tests nothing.
    pub fn remove(&mut self, key: &str) -> &mut Self {
        let at = self
            .metadata
            .iter()
            .position(|(k, _)| k == key)
            .unwrap_or_else(|| panic!("no key `{key}`"));
        self.metadata.remove(at);
        self
    }

    /// Value of a key.
    pub(crate) fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    /// Value of a key that is an F32 or U32, if it is there.
    pub(crate) fn number(&self, key: &str) -> Option<f64> {
        match self.value(key)? {
            Value::F32(number) => Some(f64::from(*number)),
            Value::U32(number) => Some(f64::from(*number)),
            other => panic!("{key}: {other:?}"),
        }
    }

    /// The tensors, in file order.
    pub(crate) fn tensors(&self) -> &[StreamedTensor] {
        self.tensors.as_slice()
    }

    /// The keys, in file order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.metadata.iter().map(|(key, _)| key.as_str())
    }

    /// Adds a tensor; `shape` has the fastest dimension first. The bytes must be as many as type and
    /// shape need, where the type's size is known.
    pub fn tensor(
        &mut self,
        name: &str,
        shape: &[u64],
        ty: TensorType,
        bytes: Vec<u8>,
    ) -> &mut Self {
        self.tensors.push(StreamedTensor::of_bytes(name, shape, ty, bytes));
        self
    }

    /// Adds a tensor whose data `data` writes, each time the file is written.
    pub fn streamed_tensor(
        &mut self,
        name: &str,
        shape: &[u64],
        ty: TensorType,
        data: impl Fn(&mut dyn Write) -> io::Result<()> + Send + Sync + 'static,
    ) -> &mut Self {
        self.tensors.push(StreamedTensor::of_stream(name, shape, ty, data));
        self
    }

    /// Takes a tensor away.
    ///
    /// # Panics
    ///
    /// If it is not there.
    pub fn remove_tensor(&mut self, name: &str) -> &mut Self {
        self.tensors.remove(name);
        self
    }

    /// The tensor names, in file order.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.as_slice().iter().map(|tensor| tensor.name.as_str())
    }

    /// Writes the file, under another name first.
    pub fn write_to(&self, path: &Path) -> io::Result<()> {
        write_file(path, |out| self.write(out))
    }

    /// Writes the model to `dir` as `count` parts, `STEM-00001-of-0000N.gguf` and so on, as
    /// `llama-gguf-split` does: the metadata is in the first, the numbering keys are in all. Returns
    /// the paths in order.
    pub fn write_split(&self, dir: &Path, stem: &str, count: usize) -> io::Result<Vec<PathBuf>> {
        let total = i32::try_from(self.tensors.as_slice().len()).expect("few enough tensors");
        let mut paths = Vec::with_capacity(count);
        for (i, tensors) in self.tensors.runs(count).enumerate() {
            let mut metadata = if i == 0 { self.metadata.clone() } else { Vec::new() };
            let number = |n: usize| Value::U16(u16::try_from(n).expect("few enough parts"));
            metadata.push(("split.no".to_owned(), number(i)));
            metadata.push(("split.count".to_owned(), number(count)));
            metadata.push(("split.tensors.count".to_owned(), Value::I32(total)));
            let path = dir.join(format!("{stem}-{:05}-of-{count:05}.gguf", i + 1));
            let part = Contents { version: self.version, metadata: &metadata, tensors };
            write_file(&path, |out| part.write(out))?;
            paths.push(path);
        }
        Ok(paths)
    }

    /// The whole file in memory.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(&mut bytes).expect("writing to memory does not fail");
        bytes
    }

    /// Writes the file to `out`.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let (version, metadata) = (self.version, self.metadata.as_slice());
        Contents { version, metadata, tensors: self.tensors.as_slice() }.write(out)
    }
}

/// What goes into one file.
struct Contents<'a> {
    version: u32,
    metadata: &'a [(String, Value)],
    tensors: &'a [StreamedTensor],
}

impl Contents<'_> {
    /// Every tensor is padded to the alignment, the last one too, as ggml's own writer does.
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let header = self.header();
        out.write_all(&header)?;
        pad(out, header.len() as u64)?;
        for tensor in self.tensors {
            tensor.write(out)?;
            pad(out, tensor.n_bytes)?;
        }
        Ok(())
    }

    fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in self.metadata {
            put_string(&mut out, key);
            put_value(&mut out, value);
        }
        let mut offset = 0;
        for tensor in self.tensors {
            put_string(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().for_each(|n| out.extend(n.to_le_bytes()));
            let id = tensor.ty.id().unwrap_or_else(|| panic!("GGUF has no type {}", tensor.ty));
            out.extend(id.to_le_bytes());
            out.extend(u64::to_le_bytes(offset));
            offset += tensor.n_bytes.next_multiple_of(ALIGNMENT);
        }
        out
    }
}

/// Zeros from `written` bytes to the alignment.
fn pad(out: &mut dyn Write, written: u64) -> io::Result<()> {
    let n = written.next_multiple_of(ALIGNMENT) - written;
    out.write_all(&[0; ALIGNMENT as usize][..n as usize])
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => put(out, 0, &v.to_le_bytes()),
        Value::I8(v) => put(out, 1, &v.to_le_bytes()),
        Value::U16(v) => put(out, 2, &v.to_le_bytes()),
        Value::I16(v) => put(out, 3, &v.to_le_bytes()),
        Value::U32(v) => put(out, 4, &v.to_le_bytes()),
        Value::I32(v) => put(out, 5, &v.to_le_bytes()),
        Value::F32(v) => put(out, 6, &v.to_le_bytes()),
        Value::Bool(v) => put(out, 7, &[u8::from(*v)]),
        Value::String(v) => {
            put(out, 8, &[]);
            put_string(out, v);
        }
        Value::Array(v) => {
            put(out, 9, &[]);
            put_array(out, v);
        }
        Value::U64(v) => put(out, 10, &v.to_le_bytes()),
        Value::I64(v) => put(out, 11, &v.to_le_bytes()),
        Value::F64(v) => put(out, 12, &v.to_le_bytes()),
    }
}

/// A type number, then `bytes`.
fn put(out: &mut Vec<u8>, ty: u32, bytes: &[u8]) {
    out.extend(ty.to_le_bytes());
    out.extend(bytes);
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    let mut head = |ty| put(out, ty, &(array.len() as u64).to_le_bytes());
    match array {
        Array::U8(v) => {
            head(0);
            out.extend(v);
        }
        Array::I8(v) => {
            head(1);
            out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
        }
        Array::U16(v) => {
            head(2);
            out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
        }
        Array::I16(v) => {
            head(3);
            out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
        }
        Array::U32(v) => {
            head(4);
            out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
        }
        Array::I32(v) => {
            head(5);
            out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
        }
        Array::F32(v) => {
            head(6);
            out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
        }
        Array::Bool(v) => {
            head(7);
            out.extend(v.iter().map(|&x| u8::from(x)));
        }
        Array::String(v) => {
            head(8);
            v.iter().for_each(|text| put_string(out, text));
        }
        Array::Array(v) => {
            head(9);
            v.iter().for_each(|inner| put_array(out, inner));
        }
        Array::U64(v) => {
            head(10);
            out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
        }
        Array::I64(v) => {
            head(11);
            out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
        }
        Array::F64(v) => {
            head(12);
            out.extend(v.iter().flat_map(|x| x.to_le_bytes()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tidekv_format::{GgufFile, GgufModel, parse_header};

    use super::*;

    fn every_value() -> Vec<(&'static str, Value)> {
        vec![
            ("u8", Value::U8(1)),
            ("i8", Value::I8(-1)),
            ("u16", Value::U16(2)),
            ("i16", Value::I16(-2)),
            ("u32", Value::U32(3)),
            ("i32", Value::I32(-3)),
            ("f32", Value::F32(0.5)),
            ("bool", Value::Bool(true)),
            ("string", Value::String("Ġa".into())),
            ("u64", Value::U64(u64::MAX)),
            ("i64", Value::I64(i64::MIN)),
            ("f64", Value::F64(-0.25)),
            ("u8s", Value::Array(Array::U8(vec![1, 2]))),
            ("i8s", Value::Array(Array::I8(vec![-1]))),
            ("u16s", Value::Array(Array::U16(vec![3]))),
            ("i16s", Value::Array(Array::I16(vec![-4]))),
            ("u32s", Value::Array(Array::U32(vec![5, 6, 7]))),
            ("i32s", Value::Array(Array::I32(vec![-8]))),
            ("f32s", Value::Array(Array::F32(vec![1.5, -2.5]))),
            ("bools", Value::Array(Array::Bool(vec![true, false]))),
            ("strings", Value::Array(Array::String(vec![String::new(), "b".into()]))),
            (
                "arrays",
                Value::Array(Array::Array(vec![
                    Array::U8(vec![9]),
                    Array::String(vec!["c".into()]),
                ])),
            ),
            ("u64s", Value::Array(Array::U64(vec![10]))),
            ("i64s", Value::Array(Array::I64(vec![-11]))),
            ("f64s", Value::Array(Array::F64(vec![]))),
        ]
    }

    #[test]
    fn every_value_type_is_read_back() {
        let mut writer = GgufWriter::new();
        for (key, value) in every_value() {
            writer.set(key, value);
        }
        let bytes = writer.to_bytes();
        let header = parse_header(&bytes, bytes.len() as u64).unwrap();
        let read: Vec<_> =
            header.metadata().iter().map(|(key, value)| (key, value.clone())).collect();
        assert_eq!(read, every_value());
    }

    #[test]
    fn tensors_are_read_back_from_both_versions() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("two.gguf");
        for version in [2, 3] {
            let mut writer = GgufWriter::new();
            writer.set_version(version);
            writer.tensor("a", &[3], TensorType::I8, vec![1, 2, 3]);
            writer.streamed_tensor("b", &[32, 2], TensorType::Q8_0, |out| out.write_all(&[7; 68]));
            writer.tensor("c", &[5], TensorType::Unknown(99), vec![4; 10]);
            writer.write_to(&path).unwrap();
            let file = GgufFile::open(&path).unwrap();
            assert_eq!(file.version(), version);
            assert_eq!(file.bytes(file.tensor("a").unwrap()), [1, 2, 3]);
            assert_eq!(file.bytes(file.tensor("b").unwrap()), [7; 68]);
            assert_eq!(file.bytes(file.tensor("c").unwrap())[..10], [4; 10]);
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "the partial file is gone");
        }
    }

    #[test]
    fn any_number_of_parts_is_the_same_model_through_any_of_them() {
        let mut writer = GgufWriter::new();
        writer.set("general.name", Value::String("in parts".into()));
        for (name, n) in [("a", 3), ("b", 32), ("c", 5)] {
            writer.tensor(name, &[n], TensorType::I8, vec![n as u8; n as usize]);
        }
        for count in [1, 2, 3, 5] {
            let dir = tempfile::tempdir().unwrap();
            let paths = writer.write_split(dir.path(), "model", count).unwrap();
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), count);
            for path in paths {
                let model = GgufModel::open(&path).unwrap();
                assert_eq!(model.metadata().str("general.name").unwrap(), Some("in parts"));
                let store = model.store();
                assert_eq!(store.files().len(), count);
                for (name, n) in [("a", 3), ("b", 32), ("c", 5)] {
                    let tensor = store.tensor(name).unwrap();
                    assert_eq!(store.bytes(tensor), vec![n as u8; n]);
                }
            }
        }
    }

    #[test]
    fn set_replaces_and_remove_removes() {
        let mut writer = GgufWriter::new();
        writer.set("a", Value::U8(1)).set("b", Value::U8(2)).set("a", Value::U8(3)).remove("b");
        writer.tensor("t", &[1], TensorType::I8, vec![0]).remove_tensor("t");
        assert_eq!(writer.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(writer.tensor_names().count(), 0);
    }

    #[test]
    #[should_panic(expected = "no key `x`")]
    fn removing_an_absent_key_fails() {
        GgufWriter::new().remove("x");
    }

    #[test]
    #[should_panic(expected = "no tensor `x`")]
    fn removing_an_absent_tensor_fails() {
        GgufWriter::new().remove_tensor("x");
    }

    #[test]
    #[should_panic(expected = "tensor `x` twice")]
    fn a_tensor_twice_fails() {
        let mut writer = GgufWriter::new();
        writer.tensor("x", &[1], TensorType::I8, vec![0]).tensor(
            "x",
            &[1],
            TensorType::I8,
            vec![0],
        );
    }

    #[test]
    #[should_panic(expected = "bytes given and bytes needed")]
    fn bytes_that_do_not_fit_the_shape_fail() {
        GgufWriter::new().tensor("x", &[2], TensorType::F32, vec![0; 7]);
    }

    #[test]
    #[should_panic(expected = "bytes written and bytes needed")]
    fn a_stream_that_does_not_fit_the_shape_fails() {
        GgufWriter::new()
            .streamed_tensor("x", &[2], TensorType::F32, |out| out.write_all(&[0; 9]))
            .to_bytes();
    }

    #[test]
    #[should_panic(expected = "rows of 33 cannot be stored as Q4_1")]
    fn rows_of_broken_blocks_fail() {
        GgufWriter::new().streamed_tensor("x", &[33], TensorType::Q4_1, |_| Ok(()));
    }
}
