//! A GGUF model in one file or in the parts that `llama-gguf-split` and the converters write.
//!
//! Every part is a GGUF file with its own tensor table. The keys `split.no` (from 0), `split.count`
//! and `split.tensors.count` are in all of them, the rest of the metadata is in the first.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{FormatError, Limit, SplitFault, cut};
use crate::numbered::NumberedName;
use crate::store::TensorStore;

use super::{GgufFile, Metadata};

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";
/// Keys that a part other than the first seldom has; where it has them they must be the first's.
const IDENTITY: [&str; 2] = ["general.architecture", "general.name"];
const ENDING: &str = ".gguf";

/// What a file says about being one part of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    /// From 1, as in file names.
    pub(super) number: u64,
    pub(super) count: u64,
    /// Tensors of the whole model, if the file says.
    tensors: Option<u64>,
}

impl Part {
    /// `None` for a file that is a model by itself.
    pub(super) fn of(metadata: &Metadata) -> Result<Option<Part>, FormatError> {
        let Some(count) = metadata.u64(COUNT)?.filter(|&count| count > 1) else {
            return Ok(None);
        };
        Limit::Files.check(count, || format!("the value of `{COUNT}`"))?;
        let number = metadata.u64(NUMBER)?.ok_or_else(|| FormatError::BadMetadata {
            key: NUMBER.to_owned(),
            expected: "the number of this part",
            found: "nothing".to_owned(),
        })?;
        if number >= count {
            let part = number.saturating_add(1);
            return Err(FormatError::Split(SplitFault::Numbering { part, count }));
        }
        Ok(Some(Part { number: number + 1, count, tensors: metadata.u64(TENSORS)? }))
    }

    fn check_name(&self, named: u64, named_count: u64) -> Result<(), SplitFault> {
        let Part { number: part, count, .. } = *self;
        if (named, named_count) == (part, count) {
            return Ok(());
        }
        Err(SplitFault::Misnamed { named, named_count, part, count })
    }

    fn check_total(&self, opened: &Part) -> Result<(), SplitFault> {
        match (opened.tensors, self.tensors) {
            (Some(first), Some(second)) if first != second => Err(SplitFault::DifferentModels {
                key: TENSORS,
                first: first.to_string(),
                second: second.to_string(),
                part: self.number,
            }),
            _ => Ok(()),
        }
    }
}

/// A model in one GGUF file or in several parts: its metadata, and the tensors of all files.
pub struct GgufModel {
    version: u32,
    metadata: Metadata,
    store: TensorStore,
}

impl GgufModel {
    /// Opens a model through its file, or through any part of it: the other parts are looked for
    /// beside it, by name. No tensor byte is read.
    ///
    /// # Errors
    ///
    /// Everything that [`GgufFile::open`] refuses, of any part; [`FormatError::Split`] if a part is
    /// missing, misnamed or of another model; [`FormatError::TensorInTwoFiles`].
    pub fn open(path: &Path) -> Result<GgufModel, FormatError> {
        let file = GgufFile::open_part(path)?;
        let Some(part) = Part::of(file.metadata())? else {
            return GgufModel::of_files(vec![file]);
        };
        let Some(name) = NumberedName::of(path, ENDING) else {
            let Part { number, count, .. } = part;
            return Err(FormatError::Split(SplitFault::Unnamed { part: number, count }));
        };
        part.check_name(name.number, name.count).map_err(FormatError::Split)?;
        GgufModel::of_files(all_parts(file, part, &name)?)
    }

    fn of_files(files: Vec<GgufFile>) -> Result<GgufModel, FormatError> {
        let version = files.first().map_or(0, GgufFile::version);
        let mut metadata = None;
        let mut tables = Vec::with_capacity(files.len());
        for file in files {
            let (own, tensors) = file.header.into_parts();
            metadata.get_or_insert(own);
            tables.push((file.mapped, tensors));
        }
        let store = TensorStore::merge(tables)?;
        Ok(GgufModel { version, metadata: metadata.unwrap_or_default(), store })
    }

    /// Version of the format, 2 or 3; that of the first part.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The key-value part; that of the first part.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensors of all files.
    pub fn store(&self) -> &TensorStore {
        &self.store
    }

    /// Metadata and tensors, for an owner that keeps them apart.
    pub fn into_parts(self) -> (Metadata, TensorStore) {
        (self.metadata, self.store)
    }
}

/// All parts in order of number; `opened`, which says it is `part`, is one of them.
fn all_parts(
    opened: GgufFile,
    part: Part,
    name: &NumberedName<'_>,
) -> Result<Vec<GgufFile>, FormatError> {
    let mut opened = Some(opened);
    let mut files: Vec<GgufFile> = Vec::new();
    for number in 1..=part.count {
        let file = match opened.take_if(|_| number == part.number) {
            Some(file) => file,
            None => open_sibling(number, &part, name)?,
        };
        if let Some(first) = files.first() {
            refuse_other_model(first, &file, number).map_err(|e| e.in_file(file.path()))?;
        }
        files.push(file);
    }
    let found = files.iter().map(|file| file.tensors().len() as u64).sum();
    match part.tensors {
        Some(expected) if expected != found => {
            let count = part.count;
            Err(FormatError::Split(SplitFault::TensorCount { count, expected, found }))
        }
        _ => Ok(files),
    }
}

fn open_sibling(
    number: u64,
    opened: &Part,
    name: &NumberedName<'_>,
) -> Result<GgufFile, FormatError> {
    let path = name.sibling(number);
    let file = match GgufFile::open_part(&path) {
        Err(FormatError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Err(FormatError::Split(missing(number, path, opened, name)));
        }
        other => other.map_err(|e| e.in_file(&path))?,
    };
    let checked = || {
        let part = Part::of(file.metadata())?.ok_or(FormatError::Split(SplitFault::NotAPart {
            named: number,
            named_count: opened.count,
        }))?;
        part.check_name(number, name.count).map_err(FormatError::Split)?;
        part.check_total(opened).map_err(FormatError::Split)
    };
    checked().map_err(|e: FormatError| e.in_file(&path))?;
    Ok(file)
}

/// All parts that are not there; `number` at `path` is the first.
fn missing(number: u64, path: PathBuf, opened: &Part, name: &NumberedName<'_>) -> SplitFault {
    let later = (number + 1..=opened.count).filter(|&number| number != opened.number);
    let absent = |path: &PathBuf| matches!(path.try_exists(), Ok(false));
    let later = later.map(|number| name.sibling(number)).filter(absent);
    SplitFault::Missing { count: opened.count, paths: std::iter::once(path).chain(later).collect() }
}

/// Refuses a part that says it is of another model than the first part says.
fn refuse_other_model(first: &GgufFile, other: &GgufFile, part: u64) -> Result<(), FormatError> {
    for key in IDENTITY {
        let values = (first.metadata().str(key)?, other.metadata().str(key)?);
        if let (Some(first), Some(second)) = values
            && first != second
        {
            return Err(FormatError::Split(SplitFault::DifferentModels {
                key,
                first: format!("`{}`", cut(first)),
                second: format!("`{}`", cut(second)),
                part,
            }));
        }
    }
    Ok(())
}

impl fmt::Debug for GgufModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GgufModel")
            .field("version", &self.version)
            .field("metadata_entries", &self.metadata.len())
            .field("store", &self.store)
            .finish()
    }
}
