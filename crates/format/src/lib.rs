//! Model files as typed tensor tables: untrusted bytes in, checked views out.
//!
//! | a model in | is opened by |
//! |---|---|
//! | a GGUF file (version 2 or 3), or any part of a split one | [`GgufModel::open`] |
//! | a safetensors file, a directory with one, or shards with an index | [`SafetensorsModel::open`] |
//! | exactly one GGUF file | [`GgufFile::open`] |
//!
//! Opening maps the files, checks everything that their headers claim against their real lengths, and
//! touches no tensor byte. The first two give the same view of the weights, a [`TensorStore`]. What
//! it hands out can be trusted in this sense: every tensor lies inside its file, apart from every
//! other tensor, and its length is the one its shape and type need. What the names and shapes *mean*
//! is the engine's business.
//!
//! [`parse_header`], [`parse_safetensors_header`] and [`parse_shard_index`] are the same checks as pure
//! functions of bytes, for property tests and fuzzing.
//!
//! The formats: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md> and
//! <https://github.com/huggingface/safetensors#format>.

#![deny(unsafe_code)] // lifted for the memory map: `mmap`, `truncation`

mod error;
mod gguf;
mod layout;
pub mod limits;
mod looks_like;
mod mmap;
mod model_name;
mod numbered;
mod safetensors;
mod store;
mod tensor_type;
mod truncation;

pub use error::{CutOff, FormatError, LayoutFault, Limit, ShardFault, SplitFault, Table, listed};
pub use gguf::{Array, GgufFile, GgufHeader, GgufModel, Metadata, Value, parse_header};
pub use layout::TensorInfo;
pub use looks_like::LooksLike;
pub use model_name::is_gguf_model_name;
pub use numbered::NumberedName;
pub use safetensors::{
    SafetensorsHeader, SafetensorsModel, ShardIndex, parse_safetensors_header, parse_shard_index,
};
pub use store::TensorStore;
pub use tensor_type::{Block, DtypeName, TensorType};
pub use truncation::{TRUNCATED_MESSAGE, exit_when_truncated};
