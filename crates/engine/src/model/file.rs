//! From model files to a [`ModelSpec`] and a table of checked tensors. Nothing
//! but headers and configuration is read.

use super::names::{self, Naming};
use super::tensors::Table;
use super::{ModelSpec, Tensors, gguf, hf};
use crate::error::Error;
use crate::text::{Tokenizer, VocabSource};
use std::path::{Path, PathBuf};
use tidekv_format::{GgufModel, Metadata, SafetensorsModel, TensorStore};

/// What stands beside the tensors.
#[derive(Debug)]
pub enum Beside {
    /// The metadata of a GGUF file.
    Gguf(Metadata),
    /// The directory of a Hugging Face model, with its tokenizer files.
    HuggingFace(PathBuf),
}

/// An opened model.
#[derive(Debug)]
pub struct ModelFile {
    /// The mapped files.
    pub store: TensorStore,
    /// What stands beside the tensors.
    pub beside: Beside,
    /// Its tensors by role.
    pub tensors: Tensors,
}

impl ModelFile {
    /// Opens a GGUF file (or any part of a split one) or a Hugging Face directory
    /// (or one of its safetensors files) and checks that it is a model the engine
    /// can describe.
    ///
    /// # Errors
    /// [`Error::Format`] for a damaged file, [`Error::Model`] for a sound one that
    /// is not supported.
    pub fn open(path: &Path) -> Result<(ModelSpec, ModelFile), Error> {
        match hf::directory_of(path) {
            Some(directory) => Self::open_hugging_face(path, &directory),
            None => Self::open_gguf(path),
        }
    }

    fn open_gguf(path: &Path) -> Result<(ModelSpec, ModelFile), Error> {
        let (metadata, store) = GgufModel::open(path)?.into_parts();
        refuse_replaced(&store)?;
        let table = Table::new(&store, Naming::Gguf);
        let spec = gguf::describe(&metadata, &table)?;
        let tensors = table.tensors(&spec)?;
        Ok((spec, ModelFile { tensors, beside: Beside::Gguf(metadata), store }))
    }

    fn open_hugging_face(path: &Path, directory: &Path) -> Result<(ModelSpec, ModelFile), Error> {
        let config = hf::Config::read(directory)?;
        let store = SafetensorsModel::open(path)?.into_store();
        refuse_replaced(&store)?;
        let table = Table::new(&store, config.naming(&store)?);
        let spec = config.describe(&table)?;
        let tensors = table.tensors(&spec)?;
        let beside = Beside::HuggingFace(directory.to_owned());
        Ok((spec, ModelFile { tensors, beside, store }))
    }

    /// The tokenizer of the model.
    ///
    /// # Errors
    /// An unknown, faulty or missing vocabulary.
    pub fn tokenizer(&self) -> Result<Tokenizer, Error> {
        Ok(match &self.beside {
            Beside::Gguf(metadata) => Tokenizer::new(VocabSource::from_metadata(metadata)?)?,
            Beside::HuggingFace(directory) => Tokenizer::from_hf(&hf::tokenizer_files(directory)?)?,
        })
    }

    /// Bytes of the weights in the files.
    pub fn mapped_bytes(&self) -> u64 {
        self.store.tensors().iter().filter_map(|tensor| tensor.n_bytes).sum()
    }
}

fn refuse_replaced(store: &TensorStore) -> Result<(), Error> {
    let names = store.tensors().iter().map(|tensor| tensor.name.as_str());
    Ok(names::refuse_replaced(names)?)
}
