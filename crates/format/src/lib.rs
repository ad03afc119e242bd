//! Model files as typed tensor tables: untrusted bytes in, checked views out.
//!
//! [`GgufFile::open`] maps a GGUF file (version 2 or 3), checks everything its header claims against
//! the file's real length, and touches no tensor byte. What it hands out can be trusted in this
//! sense: every tensor lies inside the file, aligned, apart from every other tensor, and its length
//! is the one its shape and type need. What the names and shapes *mean* is the engine's business.
//!
//! [`parse_header`] is the same check as a pure function of bytes, for property tests and fuzzing.
//!
//! The format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

#![deny(unsafe_code)] // lifted for one call, in `mmap`

mod cursor;
mod error;
mod gguf;
mod header;
mod layout;
mod looks_like;
mod metadata;
mod mmap;
mod tensor_type;

pub use error::{CutOff, FormatError, LayoutFault, Limit, Table};
pub use gguf::GgufFile;
pub use header::{GgufHeader, parse_header};
pub use layout::TensorInfo;
pub use looks_like::LooksLike;
pub use metadata::{Array, Metadata, Value};
pub use tensor_type::{Block, TensorType};

/// The caps a header is held to. Each is far above any published model and small enough that a
/// hostile header cannot make the reader allocate more than a few times [`MAX_HEADER_BYTES`](limits::MAX_HEADER_BYTES).
pub mod limits {
    /// Metadata and tensor table together. A 262,144-token vocabulary with merges takes about 16 MiB.
    pub const MAX_HEADER_BYTES: u64 = 256 << 20;
    /// Metadata entries. Published files have fewer than 100.
    pub const MAX_METADATA_ENTRIES: u64 = 1 << 16;
    /// Tensors in one file. The largest published models have a few thousand.
    pub const MAX_TENSORS: u64 = 1 << 17;
    /// Bytes of a metadata key; the limit of the GGUF specification.
    pub const MAX_KEY_BYTES: u64 = (1 << 16) - 1;
    /// Bytes of a tensor name. The specification says 64; some writers were built with more.
    pub const MAX_TENSOR_NAME_BYTES: u64 = 256;
    /// Bytes of a string value. Some files embed a whole `tokenizer.json` (up to about 35 MB).
    pub const MAX_STRING_BYTES: u64 = 64 << 20;
    /// Elements of one array. The largest vocabularies have about 300,000 tokens.
    pub const MAX_ARRAY_LEN: u64 = 1 << 24;
    /// Arrays inside arrays; no published file nests at all. 1 is a plain array.
    pub const MAX_ARRAY_DEPTH: u64 = 3;
    /// Dimensions of a tensor; the limit of ggml.
    pub const MAX_DIMS: u64 = 4;
}
