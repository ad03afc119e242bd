//! File names that count the files of a model: `name-00002-of-00003.gguf`.

use std::path::{Path, PathBuf};

/// A path whose file name ends in `-NUMBER-of-COUNT` and an ending, in letters of either case. Writers
/// agree on five digits, with exceptions (`model-00001-of-000163.safetensors`), so the digits are kept
/// as they were found, and so are the letters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumberedName<'a> {
    dir: &'a Path,
    prefix: &'a str,
    of: &'a str,
    ending: &'a str,
    digits: usize,
    count_text: &'a str,
    /// Number of the file, from 1.
    pub number: u64,
    /// Number of files.
    pub count: u64,
}

/// Between the number and the count.
const OF: &str = "-of-";

impl<'a> NumberedName<'a> {
    /// `None` for a name of another form. `ending` begins with its dot.
    pub fn of(path: &'a Path, ending: &str) -> Option<NumberedName<'a>> {
        let name = path.file_name()?.to_str()?;
        // Of the same length, byte for byte.
        let lower = name.to_ascii_lowercase();
        let stem = lower.strip_suffix(&ending.to_ascii_lowercase())?;
        let (stem, ending) = name.split_at(stem.len());
        let (rest, from_of) = stem.split_at(lower[..stem.len()].rfind(OF)?);
        let (of, count_text) = from_of.split_at(OF.len());
        let (prefix, number_text) = rest.rsplit_once('-')?;
        let dir = path.parent().unwrap_or(Path::new(""));
        let (number, count) = (digits(number_text)?, digits(count_text)?);
        let digits = number_text.len();
        Some(NumberedName { dir, prefix, of, ending, digits, count_text, number, count })
    }

    /// Path of the file with this number.
    pub fn sibling(&self, number: u64) -> PathBuf {
        let NumberedName { prefix, of, ending, digits, count_text, .. } = self;
        self.dir.join(format!("{prefix}-{number:0digits$}{of}{count_text}{ending}"))
    }

    /// Path of the file with the prefix alone and another ending.
    pub fn of_all(&self, ending: &str) -> PathBuf {
        self.dir.join(format!("{}{ending}", self.prefix))
    }
}

/// A number written in digits alone, at most nine of them.
fn digits(text: &str) -> Option<u64> {
    let plain = (1..=9).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts_are_read_and_made() {
        let path = Path::new("dir/a-b-00002-of-00003.gguf");
        let name = NumberedName::of(path, ".gguf").unwrap();
        assert_eq!((name.number, name.count), (2, 3));
        assert_eq!(name.sibling(2), path);
        assert_eq!(name.sibling(3), Path::new("dir/a-b-00003-of-00003.gguf"));
        assert_eq!(name.of_all(".json"), Path::new("dir/a-b.json"));
        let path = Path::new("model-00001-of-000163.safetensors");
        let name = NumberedName::of(path, ".safetensors").unwrap();
        assert_eq!((name.number, name.count), (1, 163));
        assert_eq!(name.sibling(17), Path::new("model-00017-of-000163.safetensors"));
        let path = Path::new("dir/É-00001-OF-00003.GGUF");
        let name = NumberedName::of(path, ".gguf").unwrap();
        assert_eq!((name.number, name.count), (1, 3));
        assert_eq!(name.sibling(2), Path::new("dir/É-00002-OF-00003.GGUF"));
    }

    #[test]
    fn other_names_are_not_numbered() {
        for name in [
            "",
            "model.gguf",
            "00001-of-00002.gguf",
            "m-00001-of-.gguf",
            "m-+1-of-2.gguf",
            "m-1-of-2.safetensors",
            "m-1-of-2.gguf.part",
            "m-1234567890-of-2.gguf",
            "m-١-of-٢.gguf",
        ] {
            assert_eq!(NumberedName::of(Path::new(name), ".gguf"), None, "{name}");
        }
    }
}
