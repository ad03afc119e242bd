//! The memory map.

use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use memmap2::{Mmap, MmapOptions};

use crate::error::FormatError;
use crate::layout::TensorInfo;

/// A read-only map of a whole file, the open file it came from, and how that file looked then.
pub(crate) struct MappedFile {
    map: Mmap,
    file: File,
    path: PathBuf,
    stamp: Stamp,
}

/// What tells one state of a file from another without reading it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    len: u64,
    /// `None` where the file system keeps no times.
    modified: Option<SystemTime>,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Stamp {
        Stamp { len: metadata.len(), modified: metadata.modified().ok() }
    }
}

impl MappedFile {
    pub(crate) fn open(path: &Path) -> Result<MappedFile, FormatError> {
        let failed = |source| FormatError::Io { path: path.to_owned(), source };
        let regular = |metadata: Metadata| match metadata.is_file() {
            true => Ok(metadata),
            false => Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))),
        };
        // Before it is opened, too: a named pipe would wait for its writer.
        regular(std::fs::metadata(path).map_err(failed)?)?;
        let file = File::open(path).map_err(failed)?;
        let metadata = regular(file.metadata().map_err(failed)?)?;
        let stamp = Stamp::of(&metadata);
        let len = usize::try_from(stamp.len).map_err(|_| {
            failed(io::Error::new(io::ErrorKind::FileTooLarge, "larger than the address space"))
        })?;
        Ok(MappedFile { map: map(&file, len).map_err(failed)?, file, path: path.to_owned(), stamp })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// The bytes between `tensor.offset` and `tensor.end`.
    ///
    /// # Panics
    ///
    /// If they are not in this file: the tensor is another file's.
    pub(crate) fn tensor_bytes(&self, tensor: &TensorInfo) -> &[u8] {
        let range = usize::try_from(tensor.offset).ok().zip(usize::try_from(tensor.end).ok());
        range
            .and_then(|(start, end)| self.map.get(start..end))
            .unwrap_or_else(|| panic!("tensor `{}` is not of this file", tensor.name))
    }

    /// Length of the file when it was opened, bytes.
    pub(crate) fn len(&self) -> u64 {
        self.stamp.len
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Compares length and modification time with those at opening.
    pub(crate) fn verify_unchanged(&self) -> Result<(), FormatError> {
        let metadata = self
            .file
            .metadata()
            .map_err(|source| FormatError::Io { path: self.path.clone(), source })?;
        let now = Stamp::of(&metadata);
        if now == self.stamp {
            return Ok(());
        }
        Err(FormatError::Changed { path: self.path.clone(), opened: self.stamp.len, now: now.len })
    }
}

/// Maps `len` bytes of `file`; zero bytes are a valid, empty map.
#[allow(unsafe_code)]
fn map(file: &File, len: usize) -> io::Result<Mmap> {
    // SAFETY: `file` is a regular file, open for reading (checked by `MappedFile::open`), and `len` is
    // its length at that moment, so every mapped page has a byte of the file behind it. What no program
    // can check is that nobody changes the file while it is mapped: another process that writes to it
    // changes bytes behind a `&[u8]`, and one that truncates it turns a later read into SIGBUS (see
    // `truncation`).
    // Three things keep the damage to wrong numbers or a clean stop, never a wrong address:
    // - everything that decides where we read (offsets, sizes, names) is copied out of the map while it
    //   is checked, once, and never read from the map again;
    // - tensor bytes are plain numbers for which every bit pattern is valid, and a layer whose output
    //   is not finite fails its request;
    // - `verify_unchanged` compares the file with its stamp, so that a long-lived process can refuse
    //   to go on. Programs that replace a model should write a new file and rename it, which leaves
    //   the mapped one as it was.
    unsafe { MmapOptions::new().len(len).map(file) }
}
