//! The tensors of a model, whatever its format and however many files it has.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use crate::error::{FormatError, Limit};
use crate::layout::TensorInfo;
use crate::mmap::MappedFile;

/// One table over the mapped files of a model. Shapes are in ggml's order in every format (see
/// [`TensorInfo::shape`]); names are those of the files.
///
/// Cheap to hold: tensor bytes stay in the files and are read by the system when they are used.
pub struct TensorStore {
    files: Vec<MappedFile>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

impl TensorStore {
    /// Merges the tables of `files`, in their order.
    pub(crate) fn merge(
        files: Vec<(MappedFile, Vec<TensorInfo>)>,
    ) -> Result<TensorStore, FormatError> {
        let total = files.iter().map(|(_, tensors)| tensors.len()).sum::<usize>();
        Limit::ModelTensors.check(total as u64, || "the model".to_owned())?;
        let mut store = TensorStore {
            files: Vec::with_capacity(files.len()),
            tensors: Vec::with_capacity(total),
            by_name: HashMap::with_capacity(total),
        };
        for (file, (mapped, tensors)) in files.into_iter().enumerate() {
            store.files.push(mapped);
            for tensor in tensors {
                store.add(TensorInfo { file, ..tensor })?;
            }
        }
        Ok(store)
    }

    fn add(&mut self, tensor: TensorInfo) -> Result<(), FormatError> {
        if let Some(other) = self.by_name.insert(tensor.name.clone(), self.tensors.len()) {
            return Err(FormatError::TensorInTwoFiles {
                first: self.files[self.tensors[other].file].path().to_owned(),
                second: self.files[tensor.file].path().to_owned(),
                tensor: tensor.name,
            });
        }
        self.tensors.push(tensor);
        Ok(())
    }

    /// All tensors: file by file, and in each file in the order of its table.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    /// The data of a tensor of this store: exactly `n_bytes` of it, or, if its type is unknown,
    /// everything up to the next tensor or the end of the file.
    ///
    /// # Panics
    ///
    /// If `tensor` comes from another store and does not lie in this one.
    pub fn bytes(&self, tensor: &TensorInfo) -> &[u8] {
        match self.files.get(tensor.file) {
            Some(file) => file.tensor_bytes(tensor),
            None => panic!("tensor `{}` is not of this model", tensor.name),
        }
    }

    /// The files in order, which [`TensorInfo::file`] counts, as paths and lengths in bytes.
    pub fn files(&self) -> impl ExactSizeIterator<Item = (&Path, u64)> {
        self.files.iter().map(|file| (file.path(), file.len()))
    }

    /// Bytes of all files together.
    pub fn file_len(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.len()))
    }

    /// Refuses with [`FormatError::Changed`] if the length or modification time of a file differ from
    /// those at opening. Costs one system call per file; call it before work that trusts the weights.
    pub fn verify_unchanged(&self) -> Result<(), FormatError> {
        self.files.iter().try_for_each(MappedFile::verify_unchanged)
    }
}

impl fmt::Debug for TensorStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorStore")
            .field("files", &self.files.iter().map(MappedFile::path).collect::<Vec<_>>())
            .field("tensors", &self.tensors.len())
            .finish_non_exhaustive()
    }
}
