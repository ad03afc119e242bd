//! A safetensors model: one file, or shards with an index, in a directory or given by path.

mod header;
mod index;
mod json;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::error::{FormatError, Limit, ShardFault};
use crate::limits::MAX_INDEX_BYTES;
use crate::mmap::MappedFile;
use crate::numbered::NumberedName;
use crate::store::TensorStore;

pub use header::{SafetensorsHeader, parse_safetensors_header};
pub use index::{ShardIndex, parse_shard_index};

const FILE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const ENDING: &str = ".safetensors";
const INDEX_ENDING: &str = ".safetensors.index.json";

/// A model in one safetensors file or in several: the tensors of all of them, and the free text that
/// the first file carries. What the model *is* stands beside it, in `config.json`.
pub struct SafetensorsModel {
    metadata: BTreeMap<String, String>,
    store: TensorStore,
}

impl SafetensorsModel {
    /// Opens the weights of a model directory (`model.safetensors`, else the shards that
    /// `model.safetensors.index.json` names), or the model that a given file belongs to: a whole
    /// `*.safetensors`, an index, or any shard that lies beside its index. No tensor byte is read.
    ///
    /// # Errors
    ///
    /// Everything that [`parse_safetensors_header`] and [`parse_shard_index`] refuse, of any file;
    /// [`FormatError::Shards`] if a file or a tensor that the index names is missing;
    /// [`FormatError::TensorInTwoFiles`].
    pub fn open(path: &Path) -> Result<SafetensorsModel, FormatError> {
        match Source::of(path)? {
            Source::Given => SafetensorsModel::of_files(vec![open_file(path)?]),
            Source::File(file) => {
                let opened = open_file(&file).map_err(|e| e.in_file(&file))?;
                SafetensorsModel::of_files(vec![opened])
            }
            Source::Index(index) => SafetensorsModel::of_files(open_shards(&index)?),
        }
    }

    fn of_files(
        files: Vec<(MappedFile, SafetensorsHeader)>,
    ) -> Result<SafetensorsModel, FormatError> {
        let mut metadata = None;
        let mut tables = Vec::with_capacity(files.len());
        for (mapped, header) in files {
            let (own, tensors) = header.into_parts();
            metadata.get_or_insert(own);
            tables.push((mapped, tensors));
        }
        let store = TensorStore::merge(tables)?;
        Ok(SafetensorsModel { metadata: metadata.unwrap_or_default(), store })
    }

    /// The entries of `__metadata__`, of the first file: free text such as `format` = `pt`.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The tensors of all files. Shapes are in ggml's order: `[out, in]` of the file is `[in, out]`.
    pub fn store(&self) -> &TensorStore {
        &self.store
    }

    /// The tensors alone.
    pub fn into_store(self) -> TensorStore {
        self.store
    }
}

impl fmt::Debug for SafetensorsModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SafetensorsModel")
            .field("metadata_entries", &self.metadata.len())
            .field("store", &self.store)
            .finish()
    }
}

/// Where the weights are that a path stands for.
enum Source {
    /// In the file given.
    Given,
    /// In this file.
    File(PathBuf),
    /// In the shards that this index names.
    Index(PathBuf),
}

impl Source {
    fn of(path: &Path) -> Result<Source, FormatError> {
        if path.is_dir() {
            return Source::of_dir(path);
        }
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.ends_with(INDEX_ENDING) {
            return Ok(Source::Index(path.to_owned()));
        }
        // A path that leads nowhere gets the system's own answer when it is opened.
        match NumberedName::of(path, ENDING) {
            Some(name) if name.count > 1 && path.exists() => {
                let index = name.of_all(INDEX_ENDING);
                if index.is_file() {
                    return Ok(Source::Index(index));
                }
                let (shard, count) = (name.number, name.count);
                Err(FormatError::Shards(ShardFault::NoIndex { shard, count, index }))
            }
            _ => Ok(Source::Given),
        }
    }

    /// One file goes before an index, as in the reference loader.
    fn of_dir(dir: &Path) -> Result<Source, FormatError> {
        let (file, index) = (dir.join(FILE), dir.join(INDEX));
        if file.is_file() {
            return Ok(Source::File(file));
        }
        if index.is_file() {
            return Ok(Source::Index(index));
        }
        let found = other_weights(dir)
            .map_err(|source| FormatError::Io { path: dir.to_owned(), source })?;
        Err(FormatError::Shards(ShardFault::NoWeights { dir: dir.to_owned(), found }))
    }
}

/// The first few names in `dir` that look like weights.
fn other_weights(dir: &Path) -> io::Result<Vec<String>> {
    const SHOWN: usize = 3;
    const ENDINGS: [&str; 6] = [ENDING, ".gguf", ".bin", ".pt", ".pth", ".ckpt"];
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if ENDINGS.iter().any(|ending| name.ends_with(ending)) {
            found.push(name);
        }
    }
    found.sort_unstable();
    found.truncate(SHOWN);
    Ok(found)
}

fn open_file(path: &Path) -> Result<(MappedFile, SafetensorsHeader), FormatError> {
    let mapped = MappedFile::open(path)?;
    let header = parse_safetensors_header(mapped.bytes(), mapped.len())?;
    Ok((mapped, header))
}

/// All shards of `index_path`, in order of name, checked against it.
///
/// Every tensor of the index must be in its shard. The other way round nothing is asked: the
/// reference loader reads whole shards too.
fn open_shards(index_path: &Path) -> Result<Vec<(MappedFile, SafetensorsHeader)>, FormatError> {
    let text = read_index(index_path)?;
    let index = parse_shard_index(&text).map_err(|e| e.in_file(index_path))?;
    let dir = index_path.parent().unwrap_or(Path::new(""));
    let count = index.shards().len() as u64;
    let mut files = Vec::with_capacity(index.shards().len());
    for (shard, number) in index.shards().iter().zip(1..) {
        let path = dir.join(shard);
        files.push(match open_file(&path) {
            Err(FormatError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                let shard = shard.clone();
                return Err(FormatError::Shards(ShardFault::MissingShard {
                    shard,
                    number,
                    count,
                    path,
                }));
            }
            other => other.map_err(|e| e.in_file(&path))?,
        });
    }
    for (tensor, shard) in index.tensors() {
        if files[shard].1.tensor(tensor).is_none() {
            let (tensor, shard) = (tensor.to_owned(), index.shards()[shard].clone());
            return Err(FormatError::Shards(ShardFault::MissingTensor { tensor, shard }));
        }
    }
    Ok(files)
}

fn read_index(path: &Path) -> Result<Vec<u8>, FormatError> {
    let failed = |source| FormatError::Io { path: path.to_owned(), source };
    let file = fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    // One byte more than allowed tells a file that is too large, also one that grows meanwhile.
    file.take(MAX_INDEX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    Limit::IndexBytes
        .check(bytes.len() as u64, || "the index of shards".to_owned())
        .map_err(|e| e.in_file(path))?;
    Ok(bytes)
}
