//! The Hugging Face hub as a source.
//!
//! A file is read in segments at a fixed commit and appended to a partial file,
//! so that an interrupted download goes on where it stopped and a cancel is
//! noticed after one segment.

use std::error::Error as StdError;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hf_hub::repository::{ModelInfo, RepoTreeEntry};
use hf_hub::{HFClient, HFError, HFRepositorySync, RepoTypeModel};

use crate::cache::{self, Digesting, Finished};
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::reference::is_relative_path;

/// An unreachable hub must not hold up the next source for long.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Silence on an open connection after which it counts as lost.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes per request: a second or two on a usual line, and few enough requests
/// (64 per GiB) to stay far below the hub's rate limits.
const SEGMENT_BYTES: u64 = 16 << 20;

/// What is wanted from the hub.
pub(crate) struct Wanted<'a> {
    pub(crate) org: &'a str,
    pub(crate) name: &'a str,
    /// Commit; the newest where `None`.
    pub(crate) revision: Option<&'a str>,
    /// Path in the repository; chosen by [`choose`] where `None`.
    pub(crate) file: Option<&'a str>,
    /// Length in bytes and lower-case hexadecimal digest, where known beforehand.
    pub(crate) expected: Option<(u64, &'a str)>,
}

/// A file from the hub.
pub(crate) struct FromHub {
    pub(crate) finished: Finished,
    /// Its path in the repository.
    pub(crate) file: String,
    /// The license named in the repository's tags.
    pub(crate) license: Option<String>,
}

/// A file at a commit, found in the listing.
struct Located {
    revision: String,
    file: String,
    n_bytes: u64,
    license: Option<String>,
}

/// Downloads the file into `dir`. The caller holds the lock of the repository.
pub(crate) fn fetch(
    wanted: &Wanted<'_>,
    endpoint: Option<&str>,
    dir: &Path,
    progress: &mut dyn Progress,
) -> Result<FromHub> {
    let hub = Repository::open(wanted, endpoint)?;
    let located = hub.locate(wanted)?;
    if let Some((n_bytes, _)) = wanted.expected
        && n_bytes != located.n_bytes
    {
        return Err(hub.error(format!(
            "{} has {} bytes there, expected {n_bytes}",
            located.file, located.n_bytes
        )));
    }
    progress.message(&format!("downloading {} from the Hugging Face hub", located.file));
    let part = dir.join(format!("{}-{}.part", located.revision, flat(&located.file)));
    let sha256 = hub.download(&located, &part, progress)?;
    if let Some((_, expected)) = wanted.expected
        && sha256 != expected
    {
        cache::remove(&part)?;
        return Err(Error::Sha256 {
            model: hub.what,
            expected: expected.to_owned(),
            actual: sha256,
        });
    }
    Ok(FromHub {
        finished: Finished { path: part, n_bytes: located.n_bytes, sha256 },
        file: located.file,
        license: located.license,
    })
}

/// The file meant by a repository without a file name: the only GGUF file, else
/// the only Q4_K_M one, which is what most repositories recommend. Parts of a
/// split model are not candidates.
///
/// # Errors
/// The candidates, where there is no such file.
pub(crate) fn choose<'a>(files: &[&'a str]) -> Result<&'a str, Vec<&'a str>> {
    let models: Vec<&str> = files
        .iter()
        .copied()
        .filter(|file| file.to_ascii_lowercase().ends_with(".gguf") && !is_split(file))
        .collect();
    let q4_k_m: Vec<&str> = models
        .iter()
        .copied()
        .filter(|file| file.to_ascii_lowercase().contains("q4_k_m"))
        .collect();
    match (models.as_slice(), q4_k_m.as_slice()) {
        ([only], _) | (_, [only]) => Ok(only),
        _ => Err(models),
    }
}

/// `true` for `...-00001-of-00003.gguf`, the name of a part of a split model.
pub(crate) fn is_split(file: &str) -> bool {
    let mut parts = file.rsplit('-');
    let digits = |text: Option<&str>| {
        text.is_some_and(|t| t.len() == 5 && t.bytes().all(|c| c.is_ascii_digit()))
    };
    digits(parts.next().and_then(|last| last.get(..5)))
        && parts.next() == Some("of")
        && digits(parts.next())
}

/// A path in a repository as one file name.
fn flat(file: &str) -> String {
    file.replace('/', "--")
}

/// A model repository of the hub.
struct Repository {
    /// For messages.
    what: String,
    /// Gives up at the first failure, to fall through to the next source quickly.
    quick: HFRepositorySync<RepoTypeModel>,
    /// Tries again, once the hub has answered.
    patient: HFRepositorySync<RepoTypeModel>,
}

impl Repository {
    fn open(wanted: &Wanted<'_>, endpoint: Option<&str>) -> Result<Self> {
        let what = format!("hf:{}/{}", wanted.org, wanted.name);
        let connect = |retries: Option<usize>| -> Result<_, Box<dyn StdError>> {
            let http = reqwest::Client::builder()
                .user_agent(concat!("tidekv/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(CONNECT_TIMEOUT)
                .read_timeout(READ_TIMEOUT)
                .build()?;
            let mut builder = HFClient::builder().client(http);
            if let Some(retries) = retries {
                builder = builder.retry_max_attempts(retries);
            }
            if let Some(endpoint) = endpoint {
                builder = builder.endpoint(endpoint);
            }
            Ok(builder.build_sync()?.model(wanted.org, wanted.name))
        };
        let failed = |error: Box<dyn StdError>| Error::Hub {
            what: what.clone(),
            reason: chain(error.as_ref()),
        };
        let quick = connect(Some(0)).map_err(failed)?;
        let patient = connect(None).map_err(failed)?;
        Ok(Self { what, quick, patient })
    }

    fn error(&self, reason: String) -> Error {
        Error::Hub { what: self.what.clone(), reason }
    }

    fn failed(&self, error: &HFError) -> Error {
        self.error(match error {
            // Its own text repeats the address that the cause names.
            HFError::Request { source, .. } => chain(source),
            other => chain(other),
        })
    }

    /// Finds commit, file and length.
    fn locate(&self, wanted: &Wanted<'_>) -> Result<Located> {
        let info: ModelInfo = self
            .quick
            .info()
            .maybe_revision(wanted.revision)
            .send()
            .map_err(|error| self.failed(&error))?;
        let revision = info
            .sha
            .or_else(|| wanted.revision.map(str::to_owned))
            .ok_or_else(|| self.error("the hub names no commit".to_owned()))?;
        let license = info
            .tags
            .unwrap_or_default()
            .iter()
            .find_map(|tag| tag.strip_prefix("license:").map(str::to_owned));
        let tree = self
            .patient
            .list_tree()
            .revision(revision.as_str())
            .recursive(true)
            .send()
            .map_err(|error| self.failed(&error))?;
        let files: Vec<(&str, u64)> = tree
            .iter()
            .filter_map(|entry| match entry {
                RepoTreeEntry::File { path, size, .. } if is_relative_path(path) => {
                    Some((path.as_str(), *size))
                }
                _ => None,
            })
            .collect();
        let (file, n_bytes) = self.pick(&files, wanted.file)?;
        Ok(Located { revision, file, n_bytes, license })
    }

    fn pick(&self, files: &[(&str, u64)], asked: Option<&str>) -> Result<(String, u64)> {
        let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
        let file = match asked {
            Some(asked) => asked,
            None => choose(&names).map_err(|candidates| {
                self.error(format!(
                    "name the file, as in {}:FILE; it has {}",
                    self.what,
                    list(&candidates)
                ))
            })?,
        };
        if is_split(file) {
            return Err(self.error(format!(
                "{file} is one part of a split model; download all parts into one directory and \
                 give the path of the first"
            )));
        }
        files
            .iter()
            .find(|(name, _)| *name == file)
            .map(|(name, n_bytes)| ((*name).to_owned(), *n_bytes))
            .ok_or_else(|| {
                let models: Vec<&str> =
                    names.into_iter().filter(|n| n.ends_with(".gguf")).collect();
                self.error(format!("it has no file {file}; it has {}", list(&models)))
            })
    }

    /// Completes `part` and returns its digest. What is there already is kept
    /// and digested first.
    fn download(
        &self,
        located: &Located,
        part: &Path,
        progress: &mut dyn Progress,
    ) -> Result<String> {
        let mut digest = Digesting::new(io::sink());
        let mut n_bytes = 0;
        if let Ok(found) = fs::metadata(part) {
            if found.len() > located.n_bytes {
                cache::remove(part)?;
            } else {
                let mut file = File::open(part).map_err(|e| Error::io("open", part, e))?;
                n_bytes = cache::copy(&mut file, &mut digest, progress, &mut |_, _| {})
                    .map_err(|error| error.at("read", part, part))?;
            }
        }
        let written = |error| Error::io("write", part, error);
        let mut file = File::options().create(true).append(true).open(part).map_err(written)?;
        while n_bytes < located.n_bytes {
            if progress.cancelled() {
                return Err(Error::Cancelled);
            }
            let end = located.n_bytes.min(n_bytes + SEGMENT_BYTES);
            let bytes = self
                .patient
                .download_file_to_bytes()
                .filename(located.file.as_str())
                .revision(located.revision.as_str())
                .range(n_bytes..end)
                .send()
                .map_err(|error| self.failed(&error))?;
            if bytes.len() as u64 != end - n_bytes {
                return Err(self.error(format!(
                    "asked for {} bytes of {} and got {}",
                    end - n_bytes,
                    located.file,
                    bytes.len()
                )));
            }
            file.write_all(&bytes).map_err(written)?;
            digest.write_all(&bytes).map_err(written)?;
            n_bytes = end;
            progress.bytes(n_bytes, located.n_bytes);
        }
        file.sync_all().map_err(written)?;
        Ok(digest.finish().1)
    }
}

/// Up to ten names in one line.
fn list(names: &[&str]) -> String {
    match names {
        [] => "no GGUF file".to_owned(),
        [shown @ .., _] if names.len() > 10 => {
            format!("{} and {} more", shown[..9].join(", "), names.len() - 9)
        }
        all => all.join(", "),
    }
}

/// An error with all its causes in one line; the cause is usually the useful part.
fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

/// The directory of a repository below `<cache>/models`.
pub(crate) fn models_dir(org: &str, name: &str) -> PathBuf {
    Path::new("hf").join(org).join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_without_a_file_name_means_its_only_or_its_q4_k_m_model() {
        assert_eq!(choose(&["README.md", "a.gguf"]), Ok("a.gguf"));
        assert_eq!(choose(&["m-Q8_0.gguf", "m-Q4_K_M.gguf"]), Ok("m-Q4_K_M.gguf"));
        assert_eq!(choose(&["a-q4_k_m-00001-of-00002.gguf", "b.gguf"]), Ok("b.gguf"));
        assert_eq!(choose(&["a-q8.gguf", "b-q8.gguf"]), Err(vec!["a-q8.gguf", "b-q8.gguf"]));
        assert_eq!(choose(&["README.md"]), Err(vec![]));
    }

    #[test]
    fn split_models_are_recognised_by_their_names() {
        assert!(is_split("x/m-q8_0-00001-of-00003.gguf"));
        for file in ["m.gguf", "m-00001.gguf", "of-00003.gguf", "m-1-of-3.gguf", "-of-é.gguf"] {
            assert!(!is_split(file), "{file}");
        }
    }

    #[test]
    fn long_lists_are_cut() {
        let names: Vec<&str> = (0..12).map(|_| "x").collect();
        assert_eq!(list(&names[..10]), ["x"; 10].join(", "));
        assert_eq!(list(&names), format!("{} and 3 more", ["x"; 9].join(", ")));
    }
}
