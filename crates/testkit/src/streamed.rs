//! Tensors to be written: data comes from closures and goes straight to the output, so a file may be
//! larger than memory.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tidekv_format::TensorType;

/// Writes the data of a tensor.
type WriteData = Box<dyn Fn(&mut dyn Write) -> io::Result<()> + Send + Sync>;

/// One tensor of a file to be.
pub(crate) struct StreamedTensor {
    pub(crate) name: String,
    /// Fastest dimension first.
    pub(crate) shape: Vec<u64>,
    pub(crate) ty: TensorType,
    pub(crate) n_bytes: u64,
    data: WriteData,
}

impl StreamedTensor {
    /// A tensor with these bytes: as many as type and shape need, where the type's size is known.
    pub(crate) fn of_bytes(name: &str, shape: &[u64], ty: TensorType, bytes: Vec<u8>) -> Self {
        let n_bytes = bytes.len() as u64;
        if ty.block().is_some() {
            assert_eq!(n_bytes, size_of(name, shape, ty), "`{name}`: bytes given and bytes needed");
        }
        StreamedTensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            ty,
            n_bytes,
            data: Box::new(move |out| out.write_all(&bytes)),
        }
    }

    /// A tensor whose bytes `data` writes, each time the file is written.
    pub(crate) fn of_stream(
        name: &str,
        shape: &[u64],
        ty: TensorType,
        data: impl Fn(&mut dyn Write) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let n_bytes = size_of(name, shape, ty);
        let data = Box::new(data);
        StreamedTensor { name: name.to_owned(), shape: shape.to_vec(), ty, n_bytes, data }
    }

    /// Writes the data.
    ///
    /// # Panics
    ///
    /// If a stream writes another number of bytes than type and shape need.
    pub(crate) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut counted = Counted { out, n: 0 };
        (self.data)(&mut counted)?;
        assert_eq!(counted.n, self.n_bytes, "`{}`: bytes written and bytes needed", self.name);
        Ok(())
    }
}

fn size_of(name: &str, shape: &[u64], ty: TensorType) -> u64 {
    let row = shape.first().copied().unwrap_or(1);
    let row_bytes = ty
        .row_bytes(row)
        .unwrap_or_else(|| panic!("`{name}`: rows of {row} cannot be stored as {ty}"));
    shape.iter().skip(1).fold(row_bytes, |bytes, n| bytes * n)
}

/// The tensors of a file, each name once.
#[derive(Default)]
pub(crate) struct TensorList(Vec<StreamedTensor>);

impl TensorList {
    pub(crate) fn push(&mut self, tensor: StreamedTensor) {
        let twice = self.0.iter().any(|t| t.name == tensor.name);
        assert!(!twice, "tensor `{}` twice", tensor.name);
        self.0.push(tensor);
    }

    /// Takes a tensor away, which must be there: a test that removes nothing tests nothing.
    pub(crate) fn remove(&mut self, name: &str) {
        let at = self.0.iter().position(|t| t.name == name);
        self.0.remove(at.unwrap_or_else(|| panic!("no tensor `{name}`")));
    }

    pub(crate) fn as_slice(&self) -> &[StreamedTensor] {
        &self.0
    }

    /// Cuts the list into `n` runs of about the same length, some empty if there are too few.
    pub(crate) fn runs(&self, n: usize) -> impl Iterator<Item = &[StreamedTensor]> {
        assert!(n > 0, "a model of no files");
        let at = move |i: usize| i * self.0.len() / n;
        (0..n).map(move |i| &self.0[at(i)..at(i + 1)])
    }
}

/// Writes a file as a sibling of `path` and renames it: whoever has an older file of that name mapped
/// keeps it whole.
pub(crate) fn write_file(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let written = File::create(&partial).and_then(|file| {
        let mut out = BufWriter::with_capacity(1 << 20, file);
        write(&mut out)?;
        out.flush()
    });
    let renamed = written.and_then(|()| fs::rename(&partial, path));
    if renamed.is_err() {
        // The first error is the one to report; that of cleaning up adds nothing.
        let _ = fs::remove_file(&partial);
    }
    renamed
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
    use super::*;

    #[test]
    fn runs_hold_every_tensor_once_and_in_order() {
        let mut list = TensorList::default();
        for name in ["a", "b", "c", "d", "e"] {
            list.push(StreamedTensor::of_bytes(name, &[1], TensorType::I8, vec![0]));
        }
        let runs = |n| -> Vec<String> {
            list.runs(n).map(|run| run.iter().map(|t| t.name.as_str()).collect()).collect()
        };
        assert_eq!(runs(1), ["abcde"]);
        assert_eq!(runs(2), ["ab", "cde"]);
        assert_eq!(runs(7), ["", "a", "b", "", "c", "d", "e"]);
    }

    #[test]
    fn a_failed_write_leaves_neither_a_file_nor_a_partial_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model");
        let failed = write_file(&path, |_| Err(io::Error::other("no space")));
        assert_eq!(failed.unwrap_err().to_string(), "no space");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
