//! Writes well-formed safetensors files, single or in shards with an index, data streamed from
//! closures.
//!
//! The format: <https://github.com/huggingface/safetensors#format>.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tidekv_format::TensorType;

use crate::streamed::{StreamedTensor, TensorList, write_file};

/// Headers are padded with spaces to a multiple of this, as the reference writer does.
const HEADER_ALIGNMENT: usize = 8;

/// A safetensors model to be. Shapes are given as everywhere in TideKV, fastest dimension first, so
/// that a test can write one model in both formats; the file gets them the other way round.
#[derive(Default)]
pub struct SafetensorsWriter {
    metadata: BTreeMap<String, String>,
    tensors: TensorList,
}

impl SafetensorsWriter {
    /// An empty file.
    pub fn new() -> SafetensorsWriter {
        SafetensorsWriter::default()
    }

    /// Gives `key` of the free text a value.
    pub fn set(&mut self, key: &str, value: &str) -> &mut Self {
        self.metadata.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Adds a tensor: F32, F16, BF16, F64 or an integer type that ggml has too; `shape` has the
    /// fastest dimension first.
    ///
    /// # Panics
    ///
    /// If the bytes are not as many as type and shape need, or the name is there already.
    pub fn tensor(
        &mut self,
        name: &str,
        shape: &[u64],
        ty: TensorType,
        bytes: Vec<u8>,
    ) -> &mut Self {
        self.push(StreamedTensor::of_bytes(name, shape, ty, bytes))
    }

    /// Adds a tensor whose data `data` writes, each time a file is written.
    pub fn streamed_tensor(
        &mut self,
        name: &str,
        shape: &[u64],
        ty: TensorType,
        data: impl Fn(&mut dyn Write) -> io::Result<()> + Send + Sync + 'static,
    ) -> &mut Self {
        self.push(StreamedTensor::of_stream(name, shape, ty, data))
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

    /// The tensor names, in the order they were added.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.as_slice().iter().map(|tensor| tensor.name.as_str())
    }

    fn push(&mut self, tensor: StreamedTensor) -> &mut Self {
        let dtype = TensorType::from_dtype(&tensor.ty.to_string());
        assert!(
            dtype == Some(tensor.ty) && tensor.ty.block_len() == Some(1),
            "safetensors has no type {}",
            tensor.ty
        );
        self.tensors.push(tensor);
        self
    }

    /// The whole model as one file in memory.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.write(self.tensors.as_slice(), &mut bytes).expect("writing to memory does not fail");
        bytes
    }

    /// Writes the whole model to one file, under another name first.
    pub fn write_to(&self, path: &Path) -> io::Result<()> {
        write_file(path, |out| self.write(self.tensors.as_slice(), out))
    }

    /// Writes the model to `dir` as `count` shards, `model-00001-of-0000N.safetensors` and so on, and
    /// `model.safetensors.index.json`. Returns the paths of the shards, in order.
    pub fn write_sharded(&self, dir: &Path, count: usize) -> io::Result<Vec<PathBuf>> {
        let mut paths = Vec::with_capacity(count);
        let mut weight_map = Map::new();
        for (tensors, number) in self.tensors.runs(count).zip(1..) {
            let name = format!("model-{number:05}-of-{count:05}.safetensors");
            let path = dir.join(&name);
            write_file(&path, |out| self.write(tensors, out))?;
            for tensor in tensors {
                weight_map.insert(tensor.name.clone(), Value::String(name.clone()));
            }
            paths.push(path);
        }
        let total: u64 = self.tensors.as_slice().iter().map(|tensor| tensor.n_bytes).sum();
        let index = json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
        let text = serde_json::to_string_pretty(&index)?;
        write_file(&dir.join("model.safetensors.index.json"), |out| {
            out.write_all(text.as_bytes())
        })?;
        Ok(paths)
    }

    /// Writes one file. Data is in the order of falling element size, which keeps every element
    /// aligned in the file without gaps; the header names tensors in that order too.
    fn write(&self, tensors: &[StreamedTensor], out: &mut dyn Write) -> io::Result<()> {
        let mut sorted: Vec<&StreamedTensor> = tensors.iter().collect();
        sorted.sort_by_key(|tensor| std::cmp::Reverse(tensor.ty.block_bytes()));
        let header = self.header(&sorted)?;
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(header.as_bytes())?;
        sorted.iter().try_for_each(|tensor| tensor.write(out))
    }

    fn header(&self, tensors: &[&StreamedTensor]) -> io::Result<String> {
        let mut entries = Vec::with_capacity(tensors.len() + 1);
        if !self.metadata.is_empty() {
            entries.push(format!("\"__metadata__\":{}", serde_json::to_string(&self.metadata)?));
        }
        let mut begin = 0;
        for tensor in tensors {
            let end = begin + tensor.n_bytes;
            let shape: Vec<u64> = tensor.shape.iter().rev().copied().collect();
            let entry = json!({
                "dtype": tensor.ty.to_string(),
                "shape": shape,
                "data_offsets": [begin, end],
            });
            entries.push(format!("{}:{entry}", serde_json::to_string(&tensor.name)?));
            begin = end;
        }
        let mut header = format!("{{{}}}", entries.join(","));
        // After the 8 bytes of its length, which are a multiple of the alignment themselves.
        let padded = header.len().next_multiple_of(HEADER_ALIGNMENT);
        header.extend(std::iter::repeat_n(' ', padded - header.len()));
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tidekv_format::{SafetensorsModel, parse_safetensors_header};

    use super::*;

    fn three() -> SafetensorsWriter {
        let mut writer = SafetensorsWriter::new();
        writer.set("format", "pt");
        // Added so that data in this order would leave the F32 tensor misaligned.
        writer.tensor("half", &[3], TensorType::BF16, vec![1, 2, 3, 4, 5, 6]);
        writer.streamed_tensor("matrix", &[2, 3], TensorType::F32, |out| out.write_all(&[7; 24]));
        writer.tensor("a \"quoted\" name", &[1, 2], TensorType::F16, vec![8, 9, 10, 11]);
        writer
    }

    #[test]
    fn tensors_are_read_back_with_their_shapes() {
        let bytes = three().to_bytes();
        let header = parse_safetensors_header(&bytes, bytes.len() as u64).unwrap();
        assert_eq!(header.metadata()["format"], "pt");
        let matrix = header.tensor("matrix").unwrap();
        assert_eq!((matrix.shape.as_slice(), matrix.ty), ([2, 3].as_slice(), TensorType::F32));
        assert!(matrix.offset.is_multiple_of(8));
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("\"shape\":[3,2]"), "slowest dimension first in the file");
        assert_eq!(header.tensor("half").unwrap().n_bytes, Some(6));
        assert_eq!(header.tensors().len(), 3);
    }

    #[test]
    fn one_file_and_any_number_of_shards_are_the_same_model() {
        let dir = tempfile::tempdir().unwrap();
        three().write_to(&dir.path().join("model.safetensors")).unwrap();
        let whole = SafetensorsModel::open(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "the partial file is gone");
        for count in [1, 2, 3] {
            let dir = tempfile::tempdir().unwrap();
            let paths = three().write_sharded(dir.path(), count).unwrap();
            assert_eq!(paths.len(), count);
            let sharded = SafetensorsModel::open(dir.path()).unwrap();
            assert_eq!(sharded.store().files().len(), count);
            for name in three().tensor_names() {
                let (one, many) = (whole.store().tensor(name), sharded.store().tensor(name));
                let (one, many) = (one.unwrap(), many.unwrap());
                assert_eq!((&one.shape, one.ty), (&many.shape, many.ty));
                assert_eq!(whole.store().bytes(one), sharded.store().bytes(many));
            }
        }
    }

    #[test]
    fn remove_removes() {
        let mut writer = three();
        writer.remove_tensor("half");
        assert_eq!(writer.tensor_names().collect::<Vec<_>>(), ["matrix", "a \"quoted\" name"]);
    }

    #[test]
    #[should_panic(expected = "safetensors has no type Q8_0")]
    fn block_types_fail() {
        SafetensorsWriter::new().tensor("x", &[32], TensorType::Q8_0, vec![0; 34]);
    }

    #[test]
    #[should_panic(expected = "bytes written and bytes needed")]
    fn a_stream_that_does_not_fit_the_shape_fails() {
        SafetensorsWriter::new()
            .streamed_tensor("x", &[2], TensorType::F32, |out| out.write_all(&[0; 9]))
            .to_bytes();
    }
}
