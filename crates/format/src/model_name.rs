//! Which of the files that lie together are models, by their names.

/// Whether `name`, a file's name without its directory, is that of a GGUF model: it ends in `.gguf`,
/// is not hidden, and is not what is published beside models: a projector of images or sound has
/// `mmproj` in its name, an importance matrix has `imatrix` at an end of it. Case does not matter.
pub fn is_gguf_model_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let Some(stem) = name.strip_suffix(".gguf").filter(|stem| !stem.is_empty()) else {
        return false;
    };
    let hidden = stem.starts_with('.');
    let projector = stem.contains("mmproj");
    let importance = stem.starts_with("imatrix") || stem.ends_with("imatrix");
    !(hidden || projector || importance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_told_from_what_lies_beside_them() {
        for name in ["m.gguf", "M.GGUF", "a-imatrix-q4_k_m.gguf", "m-00001-of-00002.gguf", "é.gguf"]
        {
            assert!(is_gguf_model_name(name), "{name}");
        }
        for name in [
            "m.bin",
            "gguf",
            ".gguf",
            ".m.gguf",
            "._m.gguf",
            "mmproj-m-f16.gguf",
            "m.MMPROJ-Q8_0.gguf",
            "imatrix_unsloth.gguf",
            "m.imatrix.gguf",
            "m.gguf.part",
        ] {
            assert!(!is_gguf_model_name(name), "{name}");
        }
    }
}
