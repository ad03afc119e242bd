//! What a file that is not of the expected format is instead: the answer a user needs, from the first bytes.

use std::fmt;

use crate::limits::MAX_SAFETENSORS_HEADER_BYTES;

/// Things that get saved under a model's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LooksLike {
    /// A web page: a login form, a licence gate or an error page.
    HtmlPage,
    /// The text stub that Git LFS leaves in place of a large file.
    GitLfsPointer,
    /// A JSON document, such as an error message or a `config.json`.
    Json,
    /// A safetensors file.
    Safetensors,
    /// A GGUF file, of any version.
    Gguf,
    /// A zip archive; PyTorch checkpoints are zip archives too.
    Zip,
    /// A bare Python pickle: a PyTorch checkpoint from before 2020.
    Pickle,
    /// A gzip archive.
    Gzip,
    /// A ggml file from before GGUF (2023).
    LegacyGgml,
    /// GGUF written for big-endian machines.
    BigEndianGguf,
    /// None of these; the file's first four bytes, zero-filled.
    Unknown([u8; 4]),
}

impl LooksLike {
    /// Judges the first bytes of a file; more than 512 are not looked at.
    pub(crate) fn of(bytes: &[u8]) -> LooksLike {
        let head = &bytes[..bytes.len().min(512)];
        let is_safetensors = |head: &[u8]| {
            // An 8-byte little-endian header length, then a JSON object.
            head.first_chunk::<8>()
                .is_some_and(|n| u64::from_le_bytes(*n) <= MAX_SAFETENSORS_HEADER_BYTES)
                && head.get(8) == Some(&b'{')
        };
        match head {
            // First: the low bytes of a header length can be those of the magics below.
            _ if is_safetensors(head) => LooksLike::Safetensors,
            [b'G', b'G', b'U', b'F', ..] => LooksLike::Gguf,
            [b'P', b'K', 3, 4, ..] => LooksLike::Zip,
            [0x1f, 0x8b, ..] => LooksLike::Gzip,
            [0x80, 2..=5, ..] => LooksLike::Pickle,
            [b'l', b'm', b'g', b'g', ..]
            | [b't', b'j', b'g', b'g', ..]
            | [b'f', b'm', b'g', b'g', ..] => LooksLike::LegacyGgml,
            _ if head.starts_with(b"version https://git-lfs") => LooksLike::GitLfsPointer,
            _ => Self::of_text(head).unwrap_or_else(|| {
                let mut first = [0; 4];
                let n = head.len().min(4);
                first[..n].copy_from_slice(&head[..n]);
                LooksLike::Unknown(first)
            }),
        }
    }

    fn of_text(head: &[u8]) -> Option<LooksLike> {
        let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
        let begins = |tag: &str| {
            text.get(..tag.len()).is_some_and(|t| t.eq_ignore_ascii_case(tag.as_bytes()))
        };
        if ["<!doctype", "<html", "<head", "<body", "<?xml", "<!--"].iter().any(|tag| begins(tag)) {
            return Some(LooksLike::HtmlPage);
        }
        matches!(text, [b'{', b'"' | b'}' | b' ' | b'\n' | b'\r' | b'\t', ..])
            .then_some(LooksLike::Json)
    }
}

impl fmt::Display for LooksLike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LooksLike::HtmlPage => {
                "it is an HTML page, probably saved in place of the download (a login or licence page?); use the file's direct link"
            }
            LooksLike::GitLfsPointer => "it is a Git LFS pointer, not the file itself; run `git lfs pull`",
            LooksLike::Json => "it is a JSON text (an error message saved in place of the download?)",
            LooksLike::Safetensors => "it is a safetensors file; give the model's directory, or the file with its ending .safetensors",
            LooksLike::Gguf => "it is a GGUF file; give it with its ending .gguf",
            LooksLike::Zip => "it is a zip archive (a PyTorch checkpoint?); give a GGUF or safetensors file of the model",
            LooksLike::Pickle => "it is a Python pickle (an old PyTorch checkpoint?); give a GGUF or safetensors file of the model",
            LooksLike::Gzip => "it is a gzip archive; unpack it first",
            LooksLike::LegacyGgml => "it is a ggml file from before GGUF; convert the model again",
            LooksLike::BigEndianGguf => {
                "it is a big-endian GGUF file, for machines of the other byte order; get the little-endian one"
            }
            LooksLike::Unknown(first) => {
                return write!(f, "it begins with the bytes {first:02x?}");
            }
        })
    }
}
