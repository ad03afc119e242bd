//! `model.safetensors.index.json`: which tensor is in which shard.

use crate::error::{FormatError, Limit, ShardFault, Table, cut};

use super::json;

/// The index's name in messages.
const INDEX: &str = "the index of shards";

/// The shards of a model and the tensors in them, checked: every shard is a plain file name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardIndex {
    shards: Vec<String>,
    /// Name, and which shard.
    tensors: Vec<(String, usize)>,
}

impl ShardIndex {
    /// File names of the shards, sorted, each once.
    pub fn shards(&self) -> &[String] {
        &self.shards
    }

    /// Tensor names in the order of the index, each with the place of its shard in
    /// [`ShardIndex::shards`].
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = (&str, usize)> {
        self.tensors.iter().map(|(name, shard)| (name.as_str(), *shard))
    }
}

/// Reads and checks the text of an index. Never panics, and allocates at most a small multiple of
/// `bytes.len()`.
///
/// # Errors
///
/// [`FormatError::BadJson`] and [`FormatError::BadUtf8`]; a tensor twice or too many; no tensor; too
/// many shards; a shard name that is not a plain `.safetensors` file name, so that no index can lead
/// out of the model's directory.
pub fn parse_shard_index(bytes: &[u8]) -> Result<ShardIndex, FormatError> {
    let json::Index { weight_map } = json::parse(bytes, INDEX, 0)?;
    weight_map.check(Limit::ModelTensors, INDEX)?;
    weight_map.refuse_duplicates(Table::WeightMap)?;
    let mut shards: Vec<String> = Vec::new();
    for (_, shard) in &weight_map.kept {
        // Entries of a shard mostly stand together: this keeps the list short before it is sorted.
        if shards.last() != Some(shard) {
            check_shard_name(shard)?;
            shards.push(shard.clone());
        }
    }
    shards.sort_unstable();
    shards.dedup();
    Limit::Files.check(shards.len() as u64, || INDEX.to_owned())?;
    if shards.is_empty() {
        return Err(FormatError::Shards(ShardFault::EmptyIndex));
    }
    let place = |shard: &String| shards.binary_search(shard).expect("every shard was listed");
    let tensors = weight_map.kept.into_iter().map(|(name, shard)| (name, place(&shard))).collect();
    Ok(ShardIndex { shards, tensors })
}

/// Refuses what is not the name of a file beside the index on every system: separators of any kind,
/// drive letters and streams, names of directories, control characters, other endings.
fn check_shard_name(name: &str) -> Result<(), FormatError> {
    Limit::FileNameBytes.check(name.len() as u64, || format!("{INDEX}, shard {:?}", cut(name)))?;
    let is_plain = name.strip_suffix(super::ENDING).is_some_and(|stem| !stem.is_empty())
        && !name.starts_with('.')
        && !name.contains(|c: char| matches!(c, '/' | '\\' | ':') || c.is_control());
    if is_plain {
        return Ok(());
    }
    Err(FormatError::Shards(ShardFault::UnsafeName { name: cut(name) }))
}
