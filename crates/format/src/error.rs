//! The crate's one error. Every variant carries the name and the numbers that a user needs to tell
//! a bad download from an unsupported file, and says what to do.

mod fault;
mod limit;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::looks_like::LooksLike;

pub use fault::{LayoutFault, ShardFault, SplitFault, listed};
pub use limit::Limit;

/// Why a file cannot be used as a model. The path is named only where the operating system failed:
/// the caller knows which file it asked for.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The operating system refused to open, stat or map the file.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Shorter than the fixed part of a header, and nothing else either.
    #[error(
        "not a model: the file has {actual} bytes and a header alone has {needed} (an interrupted download? fetch the file again)"
    )]
    TooShort {
        /// Bytes in the file.
        actual: u64,
        /// Bytes of the fixed part of the header.
        needed: u64,
    },
    /// Not a GGUF file this reader can read; what it is instead, as far as its first bytes tell.
    #[error("not a GGUF model: {0}")]
    NotGguf(LooksLike),
    /// Not a safetensors file; what it is instead, as far as its first bytes tell.
    #[error("not a safetensors model: {0}")]
    NotSafetensors(LooksLike),
    /// GGUF, but a version with another layout.
    #[error("GGUF version {version} is not supported (versions 2 and 3 are): {}", version_advice(*version))]
    UnsupportedVersion {
        /// The version the file states.
        version: u32,
    },
    /// The file ends before its header or a tensor does.
    #[error("truncated: expected {}{} bytes, have {}: {missing} (an interrupted download? fetch the file again)",
        missing.at_least(), Grouped(*expected), Grouped(*actual))]
    Truncated {
        /// Bytes the file should have; a lower bound when the header itself is cut off.
        expected: u64,
        /// Bytes it has.
        actual: u64,
        /// What is cut off.
        missing: CutOff,
    },
    /// More bytes than the header of a safetensors file accounts for.
    #[error("{} bytes follow the last tensor: expected {} bytes, have {} (the file is damaged, or two were joined)",
        Grouped(actual - expected), Grouped(*expected), Grouped(*actual))]
    Trailing {
        /// Bytes the file should have.
        expected: u64,
        /// Bytes it has.
        actual: u64,
    },
    /// A count or length above the cap of [`limits`](crate::limits): damaged or hostile.
    #[error("{at}: {limit} {} is above the limit of {} (the file is damaged or not a model)",
        Grouped(*value), Grouped(limit.max()))]
    TooLarge {
        /// The key or tensor being read.
        at: String,
        /// Which cap.
        limit: Limit,
        /// What the file states.
        value: u64,
    },
    /// A size that does not fit 64 bits.
    #[error(
        "tensor `{tensor}`: size or offset overflows 64 bits (shape {shape:?}, offset {offset}): the file is damaged"
    )]
    Overflow {
        /// The tensor.
        tensor: String,
        /// Its shape, fastest dimension first.
        shape: Vec<u64>,
        /// Its offset in the data section.
        offset: u64,
    },
    /// A metadata key or tensor name that appears twice.
    #[error("{table} `{name}` appears twice: the file is damaged or was merged wrongly")]
    Duplicate {
        /// Which table.
        table: Table,
        /// The name.
        name: String,
    },
    /// A string that is not UTF-8.
    #[error("{at}: not valid UTF-8 at byte {offset} of the file")]
    BadUtf8 {
        /// The key or table entry being read.
        at: String,
        /// Absolute position of the first offending byte.
        offset: u64,
    },
    /// A metadata value type that GGUF does not define.
    #[error(
        "metadata `{key}`: unknown value type {id} (GGUF defines 0 to 12): the file is damaged or newer than this reader"
    )]
    BadValueType {
        /// The key.
        key: String,
        /// The stated type.
        id: u32,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("metadata `{key}`: {value} is not a boolean (0 or 1): the file is damaged")]
    BadBool {
        /// The key.
        key: String,
        /// The byte found.
        value: u8,
    },
    /// A metadata value of another type, or outside the range, than its key needs.
    #[error("metadata `{key}`: expected {expected}, found {found}")]
    BadMetadata {
        /// The key.
        key: String,
        /// What the reader of the key needs.
        expected: &'static str,
        /// The type or value in the file.
        found: String,
    },
    /// The JSON of a safetensors header or of an index of shards is malformed.
    #[error("{at} is not valid: {message}: the file is damaged")]
    BadJson {
        /// What was being read.
        at: &'static str,
        /// What the parser says, with line and column; cut to a readable length.
        message: String,
    },
    /// A tensor whose place or shape contradicts its type or its neighbours.
    #[error("tensor `{tensor}`: {fault}: the file is damaged")]
    BadLayout {
        /// The tensor.
        tensor: String,
        /// The contradiction.
        fault: LayoutFault,
    },
    /// Something is wrong with the parts of a split GGUF model.
    #[error("{0}")]
    Split(SplitFault),
    /// Something is wrong with the files of a safetensors model.
    #[error("{0}")]
    Shards(ShardFault),
    /// Two files of one model have a tensor of the same name.
    #[error("tensor `{tensor}` is both in {} and in {}: the files are not of one model",
        first.display(), second.display())]
    TensorInTwoFiles {
        /// The tensor.
        tensor: String,
        /// One file.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// The error of one file of a model that has several.
    #[error("{}: {source}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<FormatError>,
    },
    /// The file on disk is no longer the one whose header was checked.
    #[error("{} changed while it was in use ({} bytes when opened, {} now): close it and load it again",
        path.display(), Grouped(*opened), Grouped(*now))]
    Changed {
        /// The file.
        path: PathBuf,
        /// Its length when it was opened.
        opened: u64,
        /// Its length now; equal if only the modification time differs.
        now: u64,
    },
}

impl FormatError {
    /// The error, said of one file among several. An [`FormatError::Io`] names its file already.
    pub(crate) fn in_file(self, path: &Path) -> FormatError {
        match self {
            io @ FormatError::Io { .. } => io,
            error => FormatError::InFile { path: path.to_owned(), source: Box::new(error) },
        }
    }
}

fn version_advice(version: u32) -> &'static str {
    if version < 2 {
        "the file is from 2023: convert the model again with a current converter"
    } else {
        "the file is newer than this reader, or damaged"
    }
}

/// Which part of a truncated file is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CutOff {
    /// The header; the text says which entry was being read.
    Header(String),
    /// Tensor data; the first tensor, in file order, that is not whole.
    Tensor(String),
}

impl CutOff {
    /// Where the header is cut off, the size of the rest is unknown.
    fn at_least(&self) -> &'static str {
        match self {
            CutOff::Header(_) => "at least ",
            CutOff::Tensor(_) => "",
        }
    }
}

impl fmt::Display for CutOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CutOff::Header(at) => write!(f, "the header ends inside {at}"),
            CutOff::Tensor(name) => write!(f, "tensor `{name}` is cut off"),
        }
    }
}

/// The tables in which a name may stand once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// Key and value pairs.
    Metadata,
    /// Tensor names.
    Tensors,
    /// Tensor names in an index of shards.
    WeightMap,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Table::Metadata => "metadata key",
            Table::Tensors => "tensor",
            Table::WeightMap => "weight_map entry",
        })
    }
}

/// Text from a file, cut to what a message can carry.
pub(crate) fn cut(text: &str) -> String {
    const READABLE: usize = 200;
    match text.char_indices().nth(READABLE) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Prints 491400064 as 491,400,064: byte counts are compared by eye.
struct Grouped(u64);

impl fmt::Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (i, digit) in digits.chars().enumerate() {
            if i > 0 && (digits.len() - i).is_multiple_of(3) {
                f.write_str(",")?;
            }
            write!(f, "{digit}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        for (n, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (491_400_064, "491,400,064")] {
            assert_eq!(Grouped(n).to_string(), text);
        }
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(&"\u{e9}".repeat(201)), "\u{e9}".repeat(200) + "...");
    }

    #[test]
    fn truncation_names_both_sizes_and_the_tensor() {
        let error = FormatError::Truncated {
            expected: 491_400_064,
            actual: 300_000_000,
            missing: CutOff::Tensor("blk.9.ffn_up.weight".into()),
        };
        let text = error.to_string();
        assert!(text.starts_with("truncated: expected 491,400,064 bytes, have 300,000,000: tensor `blk.9.ffn_up.weight`"), "{text}");
    }
}
