//! What can be wrong with places, parts and shards: the numbers behind one sentence each.

use std::fmt;
use std::path::PathBuf;

use crate::tensor_type::TensorType;

use super::Grouped;

/// What is wrong with a tensor's place or shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayoutFault {
    /// The offset in the data section is not a multiple of the file's alignment.
    Misaligned {
        /// Offset in the data section, bytes.
        offset: u64,
        /// Alignment, bytes.
        alignment: u64,
    },
    /// It begins before another tensor has ended.
    Overlaps {
        /// The tensor that begins earlier.
        other: String,
        /// Bytes in common.
        bytes: u64,
    },
    /// A row is not a whole number of quantisation blocks.
    RaggedRow {
        /// Elements of the fastest dimension.
        row: u64,
        /// Elements of a block.
        block: u64,
    },
    /// It does not begin where the tensor before it, or the header, ends.
    Hole {
        /// Bytes between the two.
        bytes: u64,
    },
    /// It ends before it begins.
    Reversed {
        /// Begin in the data section, bytes.
        begin: u64,
        /// End in the data section, bytes.
        end: u64,
    },
    /// Its place has another size than its shape and type need.
    WrongSize {
        /// Elements per dimension, fastest first.
        shape: Vec<u64>,
        /// The element type.
        ty: TensorType,
        /// Bits that shape and type need.
        needed_bits: u64,
        /// Bytes of its place.
        bytes: u64,
    },
}

impl fmt::Display for LayoutFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LayoutFault::Misaligned { offset, alignment } => {
                write!(f, "offset {offset} is not a multiple of the alignment {alignment}")
            }
            LayoutFault::Overlaps { other, bytes } => {
                write!(f, "overlaps tensor `{other}` by {} bytes", Grouped(*bytes))
            }
            LayoutFault::RaggedRow { row, block } => {
                write!(f, "rows of {row} elements are not whole blocks of {block}")
            }
            LayoutFault::Hole { bytes } => {
                write!(f, "{} bytes before it belong to no tensor", Grouped(*bytes))
            }
            LayoutFault::Reversed { begin, end } => {
                write!(f, "it begins at {begin} and ends before that, at {end}")
            }
            LayoutFault::WrongSize { shape, ty, needed_bits, bytes } => {
                let needed = needed_bits.div_ceil(8);
                write!(
                    f,
                    "shape {shape:?} of {ty} needs {} bytes and the header gives it {}",
                    Grouped(needed),
                    Grouped(*bytes)
                )
            }
        }
    }
}

/// What is wrong with the parts of a split GGUF model. Numbers count from 1, as in file names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SplitFault {
    /// A part was opened as if it were a whole file.
    #[error(
        "part {part} of {count} of a split model, where a whole file is needed (join the parts with `llama-gguf-split --merge`)"
    )]
    IsPart {
        /// The number the file states.
        part: u64,
        /// How many parts the model has.
        count: u64,
    },
    /// A file whose own number is not among its own count.
    #[error("the file says that it is part {part} of {count}: it is damaged")]
    Numbering {
        /// The number the file states.
        part: u64,
        /// The count the file states.
        count: u64,
    },
    /// A part whose name does not tell where the others are.
    #[error(
        "part {part} of {count} of a split model, but its name does not end in `-{part:05}-of-{count:05}.gguf`, so the other parts cannot be found (give all parts their original names, in one directory)"
    )]
    Unnamed {
        /// The number the file states.
        part: u64,
        /// How many parts the model has.
        count: u64,
    },
    /// Parts that are not there.
    #[error(
        "{} of the {count} parts {} missing: expected {} (all parts must be in one directory)",
        paths.len(),
        if paths.len() == 1 { "is" } else { "are" },
        listed(paths)
    )]
    Missing {
        /// How many parts the model has.
        count: u64,
        /// Where those should be that are missing, in order of number; not empty.
        paths: Vec<PathBuf>,
    },
    /// A file whose name gives it another number or count than its header.
    #[error(
        "named as part {named} of {named_count}, but its header (`split.no`, `split.count`) says part {part} of {count}: files were renamed or mixed up, so {}",
        one_set(*named_count, *count)
    )]
    Misnamed {
        /// The number in the name.
        named: u64,
        /// The count in the name.
        named_count: u64,
        /// The number in the header.
        part: u64,
        /// The count in the header.
        count: u64,
    },
    /// A file among the parts that is not a part of anything.
    #[error(
        "named as part {named} of {named_count}, but it is a whole file (another model of the same name?)"
    )]
    NotAPart {
        /// The number in the name.
        named: u64,
        /// The count in the name.
        named_count: u64,
    },
    /// Two parts that disagree about the model they belong to.
    #[error(
        "the parts are of different models: `{key}` is {first} in one part and {second} in part {part}"
    )]
    DifferentModels {
        /// The metadata key.
        key: &'static str,
        /// Its value in the part compared with.
        first: String,
        /// Its value in this part.
        second: String,
        /// The number of this part.
        part: u64,
    },
    /// All parts are there, but their tensors are not as many as the model has.
    #[error(
        "the {count} parts have {found} tensors together and should have {expected}: some part is of another model"
    )]
    TensorCount {
        /// How many parts the model has.
        count: u64,
        /// `split.tensors.count`.
        expected: u64,
        /// Tensors found.
        found: u64,
    },
    /// Several GGUF files in one.
    #[error(
        "another GGUF file begins at byte {} of {}: the parts of a split model were joined with `cat` (keep them apart in one directory, or join them with `llama-gguf-split --merge`)",
        Grouped(*at), Grouped(*file_len)
    )]
    Concatenated {
        /// Where the second file begins.
        at: u64,
        /// Bytes of the whole.
        file_len: u64,
    },
}

/// What is wrong with the files of a safetensors model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShardFault {
    /// A directory without weights under a name that is looked for.
    #[error("no model.safetensors and no model.safetensors.index.json in {}{}", dir.display(), instead(found))]
    NoWeights {
        /// The directory.
        dir: PathBuf,
        /// Weight files of other names or formats in it.
        found: Vec<String>,
    },
    /// A shard without the index that names the others.
    #[error(
        "shard {shard} of {count} of a model, but {} is missing (download it: it says which tensor is in which shard)",
        index.display()
    )]
    NoIndex {
        /// The number in the file's name.
        shard: u64,
        /// The count in the file's name.
        count: u64,
        /// Where the index should be.
        index: PathBuf,
    },
    /// A shard name in the index that could lead out of the model's directory.
    #[error(
        "the index names the shard {name:?}, which is not a plain .safetensors file name: the model is refused"
    )]
    UnsafeName {
        /// The name, cut to a readable length.
        name: String,
    },
    /// The index names no tensor.
    #[error("the index names no tensor: the file is damaged")]
    EmptyIndex,
    /// A shard that the index names and that is not there.
    #[error("shard `{shard}` ({number} of {count}) is missing: expected it at {}", path.display())]
    MissingShard {
        /// Name in the index.
        shard: String,
        /// Its place among the shards in order of name, from 1.
        number: u64,
        /// Shards that the index names.
        count: u64,
        /// Where it should be.
        path: PathBuf,
    },
    /// A tensor that is not in the shard that the index says.
    #[error(
        "tensor `{tensor}` is not in `{shard}`, where the index says it is: index and shards are not of one model"
    )]
    MissingTensor {
        /// The tensor.
        tensor: String,
        /// The shard.
        shard: String,
    },
}

/// Up to ten paths in one line.
pub fn listed(paths: &[PathBuf]) -> String {
    const SHOWN: usize = 10;
    let shown = paths.iter().take(SHOWN).map(|path| path.display().to_string());
    let shown = shown.collect::<Vec<_>>().join(", ");
    match paths.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// What to do about a name and a header that disagree.
fn one_set(named_count: u64, count: u64) -> String {
    match named_count == count {
        true => "give all parts the names they were published under".to_owned(),
        false => format!(
            "get all {count} parts, `-00001-of-{count:05}` to `-{count:05}-of-{count:05}`, from one place"
        ),
    }
}

/// The end of the sentence about a directory without the looked-for weights.
fn instead(found: &[String]) -> String {
    if found.is_empty() {
        return String::new();
    }
    format!(" (it has {}; only safetensors weights of these two names are read)", found.join(", "))
}
