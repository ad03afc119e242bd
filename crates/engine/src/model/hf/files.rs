//! The files of a model directory.

use crate::error::Error;
use crate::model::ModelError;
use crate::text::{
    HfTokenizerFiles, MAX_CHAT_TEMPLATE_BYTES, MAX_CONFIG_BYTES, MAX_TOKENIZER_JSON_BYTES,
};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// The directory whose `config.json` describes the model at `path`, if it is one
/// of safetensors.
pub(in crate::model) fn directory_of(path: &Path) -> Option<PathBuf> {
    if path.is_dir() {
        return Some(path.to_owned());
    }
    let name = path.file_name()?.to_str()?;
    let ours = name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
    // A bare file name has an empty parent.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    ours.then(|| parent.unwrap_or(Path::new(".")).to_owned())
}

/// Reads a file of a model directory, at most `limit` bytes; `None` if there is
/// none.
fn read(directory: &Path, name: &str, limit: usize) -> Result<Option<Vec<u8>>, ModelError> {
    let path = directory.join(name);
    let unreadable =
        |error: std::io::Error| ModelError::File { path: path.clone(), reason: error.to_string() };
    match std::fs::metadata(&path) {
        Ok(found) if found.is_file() => {}
        // To open a named pipe would wait for its writer.
        Ok(_) => {
            let reason = "it is not a regular file".to_owned();
            return Err(ModelError::File { path, reason });
        }
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    }
    let file = File::open(&path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() > limit {
        let reason = format!("it is longer than {limit} bytes, more than any such file has");
        return Err(ModelError::File { path, reason });
    }
    Ok(Some(bytes))
}

pub(super) fn required(
    directory: &Path,
    name: &str,
    limit: usize,
    remedy: &str,
) -> Result<Vec<u8>, ModelError> {
    read(directory, name, limit)?.ok_or_else(|| ModelError::File {
        path: directory.join(name),
        reason: format!("it is missing; {remedy}"),
    })
}

/// Reads what the tokenizer is made of.
pub(in crate::model) fn tokenizer_files(directory: &Path) -> Result<HfTokenizerFiles, Error> {
    let config = |name| read(directory, name, MAX_CONFIG_BYTES);
    Ok(HfTokenizerFiles {
        tokenizer_json: required(
            directory,
            "tokenizer.json",
            MAX_TOKENIZER_JSON_BYTES,
            "fetch it from where the model comes from",
        )?,
        tokenizer_config: config("tokenizer_config.json")?,
        generation_config: config("generation_config.json")?,
        model_config: config("config.json")?,
        special_tokens_map: config("special_tokens_map.json")?,
        chat_template: read(directory, "chat_template.jinja", MAX_CHAT_TEMPLATE_BYTES)?,
    })
}
