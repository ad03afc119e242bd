//! What the user wrote in place of a model: a path, an alias, or a hub file.

use std::fmt;
use std::path::PathBuf;

use crate::catalog::{self, KnownModel};
use crate::error::{Error, Result};

/// A model argument, understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelRef {
    /// A file on this machine.
    Local(PathBuf),
    /// A model with an alias.
    Known(&'static KnownModel),
    /// A file of the Hugging Face hub.
    Hub(HubRef),
}

/// `hf:org/name[@revision][:file]`: parts already checked to be safe as path
/// components.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubRef {
    org: String,
    name: String,
    revision: Option<String>,
    file: Option<String>,
}

impl ModelRef {
    /// Understands a model argument: `hf:org/name[@revision][:file]`, else an exact alias,
    /// else a path. A file that happens to be named like an alias is reached as
    /// `./alias`.
    ///
    /// # Errors
    /// [`Error::Reference`] for an empty text or a malformed `hf:` reference. A
    /// path is not required to exist; that is for [`Store`](crate::Store) to say.
    pub fn parse(text: &str) -> Result<Self> {
        if text.trim().is_empty() {
            return Err(Error::Reference { text: text.to_owned(), reason: "it is empty" });
        }
        if let Some(rest) = text.strip_prefix("hf:") {
            return parse_hub(rest)
                .map(Self::Hub)
                .map_err(|reason| Error::Reference { text: text.to_owned(), reason });
        }
        Ok(catalog::by_alias(text).map_or_else(|| Self::Local(PathBuf::from(text)), Self::Known))
    }
}

impl HubRef {
    /// Organisation or user.
    pub fn org(&self) -> &str {
        &self.org
    }

    /// Repository.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Branch, tag or commit, where the user gave one.
    pub fn revision(&self) -> Option<&str> {
        self.revision.as_deref()
    }

    /// Path in the repository, with `/` between components, where the user gave one.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }
}

impl fmt::Display for ModelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(path) => write!(f, "{}", path.display()),
            Self::Known(model) => f.write_str(model.alias),
            Self::Hub(hub) => hub.fmt(f),
        }
    }
}

impl fmt::Display for HubRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}/{}", self.org, self.name)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        match &self.file {
            Some(file) => write!(f, ":{file}"),
            None => Ok(()),
        }
    }
}

fn parse_hub(rest: &str) -> Result<HubRef, &'static str> {
    const FORM: &str = "write hf:org/name, hf:org/name:file or hf:org/name@revision:file";
    let (place, file) = match rest.split_once(':') {
        Some((place, file)) => (place, Some(file)),
        None => (rest, None),
    };
    let (repository, revision) = match place.split_once('@') {
        Some((repository, revision)) => (repository, Some(revision)),
        None => (place, None),
    };
    let (org, name) = repository.split_once('/').ok_or(FORM)?;
    if !is_component(org) || !is_component(name) {
        return Err("an organisation and a name consist of letters, digits, `-`, `_` and `.`, \
             and write hf:org/name or hf:org/name:file");
    }
    if revision.is_some_and(|revision| !revision.split('/').all(is_component)) {
        return Err("a revision is a commit, a branch or a tag: letters, digits, `-`, `_`, `.` \
             and `/`, and no part begins with `.`");
    }
    if file.is_some_and(|file| !is_relative_path(file)) {
        return Err("the file must be a path inside the repository, without `..`");
    }
    Ok(HubRef {
        org: org.to_owned(),
        name: name.to_owned(),
        revision: revision.map(str::to_owned),
        file: file.map(str::to_owned),
    })
}

/// `true` for the full name of a commit.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
}

/// `true` for a name that is one harmless path component on every platform.
fn is_component(text: &str) -> bool {
    // A leading dot is refused because `.`, `..` and hidden files start with one.
    !text.is_empty()
        && !text.starts_with('.')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// `true` for a `/`-separated path that cannot leave the directory it is joined to.
pub(crate) fn is_relative_path(text: &str) -> bool {
    text.split('/').all(|part| {
        !part.is_empty()
            && !part.starts_with('.')
            && !part.contains(['\\', ':', '\0'])
            && !part.chars().any(char::is_control)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_forms_are_told_apart_and_shown_as_written() {
        assert!(
            matches!(ModelRef::parse("smollm2-135m"), Ok(ModelRef::Known(m)) if m.n_bytes == 98_362_432)
        );
        assert_eq!(
            ModelRef::parse("./smollm2-135m").unwrap(),
            ModelRef::Local("./smollm2-135m".into())
        );
        for text in [
            "hf:Qwen/Qwen2.5-GGUF",
            "hf:a/b:sub/x-q4_k_m.gguf",
            "hf:a/b@v1.0:x.gguf",
            "hf:a/b@refs/pr/1",
            "some/dir/x.gguf",
        ] {
            assert_eq!(ModelRef::parse(text).unwrap().to_string(), text);
        }
        let ModelRef::Hub(hub) = ModelRef::parse("hf:a/b:sub/x.gguf").unwrap() else {
            panic!("a hub reference")
        };
        assert_eq!((hub.org(), hub.name(), hub.file()), ("a", "b", Some("sub/x.gguf")));
        assert_eq!(hub.revision(), None);
        let ModelRef::Hub(hub) = ModelRef::parse("hf:a/b@main:x@y.gguf").unwrap() else {
            panic!("a hub reference")
        };
        assert_eq!((hub.revision(), hub.file()), (Some("main"), Some("x@y.gguf")));
    }

    #[test]
    fn references_that_could_leave_the_cache_are_refused() {
        for text in [
            "",
            "  ",
            "hf:",
            "hf:a",
            "hf:/b",
            "hf:a/",
            "hf:../b",
            "hf:a/..",
            "hf:a/b/c",
            "hf:a/b:",
            "hf:a/b:/etc/passwd",
            "hf:a/b:../x",
            "hf:a/b:x/../../y",
            "hf:a/b:c:\\x",
            "hf:a/b:x//y",
            "hf:a b/c",
            "hf:a/b@",
            "hf:a/b@..",
            "hf:a/b@../../x",
            "hf:a/b@/etc",
            "hf:a/b@x//y",
            "hf:a/b@x y",
            "hf:a/b@x\\y:f",
            "hf:@main",
        ] {
            let error = ModelRef::parse(text).unwrap_err();
            assert!(matches!(error, Error::Reference { .. }), "{text}: {error}");
        }
    }
}
