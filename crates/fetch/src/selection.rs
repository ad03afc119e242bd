//! Which files of a repository make a model.

use std::path::{Path, PathBuf};

use tidekv_format::{NumberedName, is_gguf_model_name};

use crate::reference::is_relative_path;

/// Configuration and tokenizer of a directory of safetensors, those it must have
/// first.
const BESIDE: [&str; 6] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];
/// How many of [`BESIDE`] are needed.
const NEEDED: usize = 2;

/// Most parts that a name may speak of: beyond it somebody plays with the cache.
const MAX_PARTS: u64 = 1000;

/// Files that belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Selection {
    /// The file to open; the directory of the files where `None`.
    pub(crate) entry: Option<String>,
    /// All of them, as paths in the repository.
    pub(crate) files: Vec<String>,
}

impl Selection {
    /// The files that are meant by the name of one: all parts of a split model.
    pub(crate) fn of_file(file: &str) -> Selection {
        let files = match part_of(file) {
            Some(part) => (1..=part.count).map(|number| name_of(&part, number)).collect(),
            None => vec![file.to_owned()],
        };
        Selection { entry: files.first().cloned(), files }
    }

    /// The model of a repository: its only GGUF model, else the only Q4_K_M one,
    /// which is what most repositories recommend, else the safetensors at its top
    /// with configuration and tokenizer.
    ///
    /// # Errors
    /// What to do, in words.
    pub(crate) fn of_repository(files: &[&str], what: &str) -> Result<Selection, String> {
        let name = |file: &str| file.rsplit('/').next().is_some_and(is_gguf_model_name);
        let is_gguf = |file: &&&str| name(file);
        // Of a split model the first part stands for all.
        let first = |file: &&&str| part_of(file).is_none_or(|part| part.number == 1);
        let models: Vec<&str> = files.iter().filter(is_gguf).filter(first).copied().collect();
        let q4_k_m = |file: &&&str| file.to_ascii_lowercase().contains("q4_k_m");
        let recommended: Vec<&str> = models.iter().filter(q4_k_m).copied().collect();
        match (models.as_slice(), recommended.as_slice()) {
            ([only], _) | (_, [only]) => Ok(Selection::of_file(only)),
            ([], _) => Selection::of_safetensors(files),
            _ => Err(format!("name the file, as in {what}:FILE; it has {}", list(&models))),
        }
    }

    fn of_safetensors(files: &[&str]) -> Result<Selection, String> {
        let has = |name: &str| files.contains(&name);
        let weights: Vec<&str> = files.iter().copied().filter(is_safetensors_at_top).collect();
        const INDEX: &str = "model.safetensors.index.json";
        let chosen: Vec<&str> = match weights.as_slice() {
            [] => return Err("it has neither a GGUF model nor safetensors at its top".to_owned()),
            // Some repositories hold the same weights once more under other names.
            all if has(INDEX) => {
                let shard = |file: &&str| file.starts_with("model-") && part_of(file).is_some();
                [INDEX].into_iter().chain(all.iter().copied().filter(shard)).collect()
            }
            _ if has("model.safetensors") => vec!["model.safetensors"],
            [only] => vec![only],
            several => {
                return Err(format!("which of its safetensors are the model? {}", list(several)));
            }
        };
        if let Some(missing) = BESIDE[..NEEDED].iter().find(|name| !has(name)) {
            return Err(format!("it has safetensors but no {missing}"));
        }
        let beside = BESIDE.into_iter().filter(|name| has(name));
        let files = beside.chain(chosen).map(str::to_owned).collect();
        Ok(Selection { entry: None, files })
    }

    /// What is opened, where the files are in `dir`.
    pub(crate) fn path_in(&self, dir: &Path) -> PathBuf {
        self.entry.as_ref().map_or(dir.to_path_buf(), |entry| dir.join(entry))
    }

    /// As the text of a file of the cache.
    pub(crate) fn to_text(&self) -> String {
        let entry = self.entry.as_deref().unwrap_or(".");
        let lines = [entry].into_iter().chain(self.files.iter().map(String::as_str));
        lines.fold(String::new(), |text, line| text + line + "\n")
    }

    /// Reads [`Selection::to_text`]; `None` where the text is something else.
    pub(crate) fn from_text(text: &str) -> Option<Selection> {
        let mut lines = text.lines().map(str::to_owned);
        let entry = lines.next().map(|entry| Some(entry).filter(|entry| entry != "."))?;
        let files: Vec<String> = lines.collect();
        let sound = !files.is_empty()
            && files.iter().all(|file| is_relative_path(file))
            && entry.as_ref().is_none_or(|entry| files.contains(entry));
        sound.then_some(Selection { entry, files })
    }
}

fn is_safetensors_at_top(file: &&str) -> bool {
    file.ends_with(".safetensors") && !file.contains('/')
}

/// The name of a part of a split model, of as many parts as one may have.
fn part_of(file: &str) -> Option<NumberedName<'_>> {
    let ending = &file[file.rfind('.')?..];
    let part = NumberedName::of(Path::new(file), ending)?;
    let sound = part.count <= MAX_PARTS && (1..=part.count).contains(&part.number);
    sound.then_some(part)
}

/// Another part's path in the repository, where names are divided by `/`.
fn name_of(part: &NumberedName<'_>, number: u64) -> String {
    let path = part.sibling(number);
    path.components().map(|name| name.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/")
}

/// Up to ten names in one line.
pub(crate) fn list(names: &[&str]) -> String {
    match names {
        [] => "no GGUF file".to_owned(),
        [shown @ .., _] if names.len() > 10 => {
            format!("{} and {} more", shown[..9].join(", "), names.len() - 9)
        }
        all => all.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(files: &[&str]) -> Result<Vec<String>, String> {
        Selection::of_repository(files, "hf:o/r").map(|selection| selection.files)
    }

    #[test]
    fn a_repository_means_its_only_or_its_q4_k_m_model() {
        let one = |file: &str| Ok(vec![file.to_owned()]);
        assert_eq!(select(&["README.md", "a.gguf"]), one("a.gguf"));
        assert_eq!(select(&["m-Q8_0.gguf", "m-Q4_K_M.gguf"]), one("m-Q4_K_M.gguf"));
        assert_eq!(select(&["model.safetensors", "config.json", "a.gguf"]), one("a.gguf"));
        let split = ["q4_k_m-00001-of-00002.gguf", "q4_k_m-00002-of-00002.gguf"];
        assert_eq!(select(&[split[0], split[1], "b.gguf"]), Ok(split.map(str::to_owned).to_vec()));
        let several = select(&["a-q8.gguf", "b-q8.gguf"]).unwrap_err();
        assert_eq!(several, "name the file, as in hf:o/r:FILE; it has a-q8.gguf, b-q8.gguf");
        assert!(select(&["README.md"]).unwrap_err().contains("neither"));
    }

    #[test]
    fn a_projector_or_an_importance_matrix_is_no_model() {
        let beside = ["mmproj-m-f16.gguf", "x/m.mmproj-q8_0.gguf", "imatrix.gguf", "x/.m.gguf"];
        assert_eq!(select(&[&beside[..], &["x/m.gguf"]].concat()), Ok(vec!["x/m.gguf".to_owned()]));
        assert!(select(&beside).unwrap_err().contains("neither"));
        // Each can still be named.
        assert_eq!(Selection::of_file(beside[0]).files, [beside[0]]);
    }

    #[test]
    fn safetensors_come_with_what_stands_beside_them_and_without_doubles() {
        let single =
            ["x.py", "config.json", "tokenizer.json", "model.safetensors", "b.safetensors"];
        let expected = ["config.json", "tokenizer.json", "model.safetensors"];
        assert_eq!(select(&single).unwrap(), expected);
        let index = "model.safetensors.index.json";
        let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        let other = ["consolidated.safetensors", "sub/model-00001-of-00001.safetensors"];
        let files = [&single[..3], &[index], &shards[..], &other[..]].concat();
        let expected = [&single[1..3], &[index], &shards[..]].concat();
        assert_eq!(select(&files).unwrap(), expected);
        assert_eq!(Selection::of_repository(&files, "").unwrap().entry, None);
        assert!(select(&["a.safetensors", "b.safetensors"]).unwrap_err().contains("which of"));
        let lacking = select(&["model.safetensors", "config.json"]).unwrap_err();
        assert!(lacking.contains("no tokenizer.json"), "{lacking}");
    }

    #[test]
    fn any_part_of_a_split_model_means_all() {
        let selection = Selection::of_file("x/m-q8-00002-of-00003.gguf");
        assert_eq!(selection.entry.as_deref(), Some("x/m-q8-00001-of-00003.gguf"));
        assert_eq!(selection.files.len(), 3);
        // As the opener reads them: `tidekv_format` has the rule.
        let odd = Selection::of_file("x/y/m-00017-of-000163.safetensors");
        assert_eq!(odd.files.len(), 163);
        assert_eq!(odd.files[1], "x/y/m-00002-of-000163.safetensors");
        assert_eq!(Selection::of_file("m-1-of-2.gguf").files, ["m-1-of-2.gguf", "m-2-of-2.gguf"]);
        for file in [
            "m.gguf",
            "m-00001.gguf",
            "of-00003.gguf",
            "m-00000-of-00003.gguf",
            "-of-é.gguf",
            "m-00004-of-00003.gguf",
            "m-00001-of-99999.gguf",
        ] {
            assert_eq!(Selection::of_file(file).files, [file]);
        }
    }

    #[test]
    fn the_text_of_a_selection_is_read_again_and_other_text_is_not() {
        for selection in [
            Selection::of_file("x/m-00001-of-00002.gguf"),
            Selection {
                entry: None,
                files: vec!["config.json".into(), "model.safetensors".into()],
            },
        ] {
            assert_eq!(Selection::from_text(&selection.to_text()), Some(selection));
        }
        for text in ["", ".\n", "a\nb\n", ".\n../x\n", ".\n/etc/passwd\n"] {
            assert_eq!(Selection::from_text(text), None, "{text:?}");
        }
    }

    #[test]
    fn long_lists_are_cut() {
        let names: Vec<&str> = (0..12).map(|_| "x").collect();
        assert_eq!(list(&names[..10]), ["x"; 10].join(", "));
        assert_eq!(list(&names), format!("{} and 3 more", ["x"; 9].join(", ")));
    }
}
