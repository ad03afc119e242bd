//! Writes well-formed GGUF files. Tensor data comes from closures and goes straight to the output,
//! so a file may be larger than memory.
//!
//! The format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tidekv_format::{Array, TensorType, Value};

/// Tensor data begins at multiples of this, the format's default.
pub const ALIGNMENT: u64 = 32;

type Data = Box<dyn Fn(&mut dyn Write) -> io::Result<()> + Send + Sync>;

/// A GGUF file to be: metadata and tensors in the order they will have.
pub struct GgufWriter {
    version: u32,
    metadata: Vec<(String, Value)>,
    tensors: Vec<Tensor>,
}

struct Tensor {
    name: String,
    shape: Vec<u64>,
    ty: TensorType,
    n_bytes: u64,
    data: Data,
}

impl Default for GgufWriter {
    fn default() -> Self {
        GgufWriter::new()
    }
}

impl GgufWriter {
    /// An empty file of version 3.
    pub fn new() -> GgufWriter {
        GgufWriter { version: 3, metadata: Vec::new(), tensors: Vec::new() }
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
        let n_bytes = bytes.len() as u64;
        if ty.block().is_some() {
            assert_eq!(n_bytes, size_of(name, shape, ty), "`{name}`: bytes given and bytes needed");
        }
        self.push(Tensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            ty,
            n_bytes,
            data: Box::new(move |out| out.write_all(&bytes)),
        })
    }

    /// Adds a tensor whose data `data` writes, each time the file is written.
    pub fn streamed_tensor(
        &mut self,
        name: &str,
        shape: &[u64],
        ty: TensorType,
        data: impl Fn(&mut dyn Write) -> io::Result<()> + Send + Sync + 'static,
    ) -> &mut Self {
        let n_bytes = size_of(name, shape, ty);
        self.push(Tensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            ty,
            n_bytes,
            data: Box::new(data),
        })
    }

    /// Takes a tensor away.
    ///
    /// # Panics
    ///
    /// If it is not there.
    pub fn remove_tensor(&mut self, name: &str) -> &mut Self {
        let at = self
            .tensors
            .iter()
            .position(|t| t.name == name)
            .unwrap_or_else(|| panic!("no tensor `{name}`"));
        self.tensors.remove(at);
        self
    }

    /// The tensor names, in file order.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.iter().map(|tensor| tensor.name.as_str())
    }

    fn push(&mut self, tensor: Tensor) -> &mut Self {
        assert!(
            self.tensors.iter().all(|t| t.name != tensor.name),
            "tensor `{}` twice",
            tensor.name
        );
        self.tensors.push(tensor);
        self
    }

    /// Writes the file to a sibling of `path` and renames it: whoever has an older file of that name
    /// mapped keeps it whole.
    pub fn write_to(&self, path: &Path) -> io::Result<()> {
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let written = File::create(&partial).and_then(|file| {
            let mut out = BufWriter::with_capacity(1 << 20, file);
            self.write(&mut out)?;
            out.flush()
        });
        let renamed = written.and_then(|()| fs::rename(&partial, path));
        if renamed.is_err() {
            // The first error is the one to report; that of cleaning up adds nothing.
            let _ = fs::remove_file(&partial);
        }
        renamed
    }

    /// The whole file in memory.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(&mut bytes).expect("writing to memory does not fail");
        bytes
    }

    /// Writes the file to `out`. Every tensor is padded to the alignment, the last one too, as ggml's
    /// own writer does.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let header = self.header();
        out.write_all(&header)?;
        pad(out, header.len() as u64)?;
        for tensor in &self.tensors {
            let mut counted = Counted { out, n: 0 };
            (tensor.data)(&mut counted)?;
            assert_eq!(
                counted.n, tensor.n_bytes,
                "`{}`: bytes written and bytes needed",
                tensor.name
            );
            pad(out, tensor.n_bytes)?;
        }
        Ok(())
    }

    fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_string(&mut out, key);
            put_value(&mut out, value);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            put_string(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().for_each(|n| out.extend(n.to_le_bytes()));
            out.extend(tensor.ty.id().to_le_bytes());
            out.extend(u64::to_le_bytes(offset));
            offset += tensor.n_bytes.next_multiple_of(ALIGNMENT);
        }
        out
    }
}

fn size_of(name: &str, shape: &[u64], ty: TensorType) -> u64 {
    let row = shape.first().copied().unwrap_or(1);
    let row_bytes = ty
        .row_bytes(row)
        .unwrap_or_else(|| panic!("`{name}`: rows of {row} cannot be stored as {ty}"));
    shape.iter().skip(1).fold(row_bytes, |bytes, n| bytes * n)
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

/// Counts what passes through.
struct Counted<'a> {
    out: &'a mut dyn Write,
    n: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.out.write(bytes)?;
        self.n += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use tidekv_format::{GgufFile, parse_header};

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
