//! What the readers promise of any bytes at all. Entry points of the property tests and of the fuzz
//! targets in `fuzz/`, which include this file.
#![allow(dead_code, reason = "each user takes its own part")]

use std::path::{Component, Path};

use tidekv_format::{TensorInfo, parse_header, parse_safetensors_header, parse_shard_index};

/// A GGUF header is refused or sound, and its error is a sentence of readable length.
pub fn gguf_header(bytes: &[u8], file_len: u64) {
    match parse_header(bytes, file_len) {
        Ok(header) => {
            assert_tensors_sound(header.tensors(), file_len);
            for tensor in header.tensors() {
                assert_eq!(header.tensor(&tensor.name), Some(tensor));
            }
        }
        Err(error) => assert_readable(&error.to_string()),
    }
}

/// A safetensors header is refused or sound, and then its tensors fill the file.
pub fn safetensors_header(bytes: &[u8], file_len: u64) {
    match parse_safetensors_header(bytes, file_len) {
        Ok(header) => {
            assert_tensors_sound(header.tensors(), file_len);
            let length = *bytes.first_chunk().expect("an accepted header has a length");
            let sizes = header.tensors().iter().map(|tensor| tensor.n_bytes.expect("a size"));
            assert_eq!(8 + u64::from_le_bytes(length) + sizes.sum::<u64>(), file_len);
            for tensor in header.tensors() {
                assert_eq!(header.tensor(&tensor.name), Some(tensor));
            }
        }
        Err(error) => assert_readable(&error.to_string()),
    }
}

/// An index is refused or names plain files, each of them used.
pub fn shard_index(bytes: &[u8]) {
    match parse_shard_index(bytes) {
        Ok(index) => {
            for shard in index.shards() {
                let parts: Vec<_> = Path::new(shard).components().collect();
                assert!(matches!(parts.as_slice(), [Component::Normal(_)]), "{shard:?}");
                assert!(!shard.contains(['/', '\\', ':', '\0']), "{shard:?}");
            }
            let mut used = vec![false; index.shards().len()];
            index.tensors().for_each(|(_, shard)| used[shard] = true);
            assert!(used.iter().all(|&used| used) && !used.is_empty());
        }
        Err(error) => assert_readable(&error.to_string()),
    }
}

/// What a parsed table promises whoever reads tensor data with it.
fn assert_tensors_sound(tensors: &[TensorInfo], file_len: u64) {
    let mut extents: Vec<(u64, u64)> = Vec::new();
    for tensor in tensors {
        let end =
            tensor.offset.checked_add(tensor.n_bytes.unwrap_or(0)).expect("an end that overflows");
        assert!(end <= file_len, "`{}` ends at {end} of {file_len}", tensor.name);
        if let (Some(block), Some(n_bytes)) = (tensor.ty.block(), tensor.n_bytes) {
            let blocks = u128::from(tensor.n_elements() / block.len);
            assert_eq!(blocks * u128::from(block.bytes), u128::from(n_bytes), "{tensor:?}");
        }
        if end > tensor.offset {
            extents.push((tensor.offset, end));
        }
    }
    extents.sort_unstable();
    assert!(extents.windows(2).all(|pair| pair[0].1 <= pair[1].0), "tensors overlap: {extents:?}");
}

fn assert_readable(message: &str) {
    // A metadata key, the longest text that errors quote whole, may be 65,535 bytes.
    assert!(!message.is_empty() && message.len() < (1 << 16) + 1024, "{} bytes", message.len());
}
