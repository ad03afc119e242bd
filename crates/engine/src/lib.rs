//! TideKV: layer-major prefill with delayed KV eviction, the library.

pub mod text;
