//! The caps a header is held to. Each is far above any published model and small enough that a
//! hostile header cannot make the reader allocate more than a few times [`MAX_HEADER_BYTES`].

/// Metadata and tensor table of a GGUF file together. A 262,144-token vocabulary with merges takes about 16 MiB.
pub const MAX_HEADER_BYTES: u64 = 256 << 20;
/// Metadata entries of one file. Published files have fewer than 100.
pub const MAX_METADATA_ENTRIES: u64 = 1 << 16;
/// Tensors in one file. The largest published files have a few thousand.
pub const MAX_TENSORS: u64 = 1 << 17;
/// Tensors of a model over all of its files. The largest mixtures of experts, one tensor per expert
/// and scale, have about 150,000.
pub const MAX_MODEL_TENSORS: u64 = 1 << 20;
/// Files of one model. The largest published models have fewer than 200.
pub const MAX_FILES: u64 = 1 << 12;
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
/// Dimensions of a GGUF tensor; the limit of ggml.
pub const MAX_DIMS: u64 = 4;
/// Bytes of the JSON header of a safetensors file; the limit of the reference implementation.
pub const MAX_SAFETENSORS_HEADER_BYTES: u64 = 100_000_000;
/// Dimensions of a safetensors tensor. The patch embeddings of video models have 5.
pub const MAX_SAFETENSORS_DIMS: u64 = 8;
/// Bytes of the name of a safetensors element type. The longest published one has 11.
pub const MAX_DTYPE_BYTES: u64 = 16;
/// Bytes of an index of shards. 150,000 tensors take about 15 MB.
pub const MAX_INDEX_BYTES: u64 = 128 << 20;
/// Bytes of a shard's file name; the limit of the usual file systems.
pub const MAX_FILE_NAME_BYTES: u64 = 255;
