//! The Hugging Face hub as a source.
//!
//! A file is read in segments at a fixed commit and appended to a partial file,
//! so that an interrupted download goes on where it stopped and a cancel is
//! noticed after one segment.

use std::error::Error as StdError;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use hf_hub::repository::{ModelInfo, RepoTreeEntry};
use hf_hub::{HFClient, HFError, HFRepositorySync, RepoTypeModel};

use crate::cache::{self, Digesting, Finished};
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::reference::{is_commit, is_relative_path};

/// An unreachable hub must not hold up the next source for long.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Silence on an open connection after which it counts as lost.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes per request: a second or two on a usual line, and few enough requests
/// (64 per GiB) to stay far below the hub's rate limits.
const SEGMENT_BYTES: u64 = 16 << 20;

/// A file as the hub lists it.
#[derive(Debug, Clone)]
pub(crate) struct Listed {
    /// Its path in the repository: relative, and safe to join.
    pub(crate) path: String,
    /// Its length.
    pub(crate) n_bytes: u64,
}

/// A repository at a commit.
pub(crate) struct Listing {
    /// Forty hexadecimal digits.
    pub(crate) commit: String,
    /// Its files, without those whose names could leave a directory.
    pub(crate) files: Vec<Listed>,
    /// The license named in the repository's tags.
    pub(crate) license: Option<String>,
}

impl Listing {
    /// The file at `path`.
    pub(crate) fn file(&self, path: &str) -> Option<&Listed> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Paths of all files.
    pub(crate) fn paths(&self) -> Vec<&str> {
        self.files.iter().map(|file| file.path.as_str()).collect()
    }
}

/// A path in a repository as one file name.
fn flat(file: &str) -> String {
    file.replace('/', "--")
}

/// A model repository of the hub.
pub(crate) struct Repository {
    /// For messages.
    what: String,
    /// Gives up at the first failure, to fall through to the next source quickly.
    quick: HFRepositorySync<RepoTypeModel>,
    /// Tries again, once the hub has answered.
    patient: HFRepositorySync<RepoTypeModel>,
}

impl Repository {
    /// The repository at an endpoint, or at the one hf-hub finds; not yet asked.
    pub(crate) fn open(org: &str, name: &str, endpoint: Option<&str>) -> Result<Self> {
        let what = format!("hf:{org}/{name}");
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
            Ok(builder.build_sync()?.model(org, name))
        };
        let failed = |error: Box<dyn StdError>| Error::Hub {
            what: what.clone(),
            reason: chain(error.as_ref()),
        };
        let quick = connect(Some(0)).map_err(failed)?;
        let patient = connect(None).map_err(failed)?;
        Ok(Self { what, quick, patient })
    }

    /// An answer of this repository that is of no use.
    pub(crate) fn error(&self, reason: String) -> Error {
        Error::Hub { what: self.what.clone(), reason }
    }

    fn failed(&self, error: &HFError) -> Error {
        self.error(match error {
            // Its own text repeats the address that the cause names.
            HFError::Request { source, .. } => chain(source),
            other => chain(other),
        })
    }

    /// Resolves a branch, tag or commit (the default branch where `None`) and
    /// lists the files.
    pub(crate) fn list(&self, revision: Option<&str>) -> Result<Listing> {
        let info: ModelInfo = self
            .quick
            .info()
            .maybe_revision(revision)
            .send()
            .map_err(|error| self.failed(&error))?;
        let commit = info.sha.filter(|commit| is_commit(commit));
        let commit = commit.ok_or_else(|| self.error("the hub names no commit".to_owned()))?;
        let license = info
            .tags
            .unwrap_or_default()
            .iter()
            .find_map(|tag| tag.strip_prefix("license:").map(str::to_owned));
        let tree = self
            .patient
            .list_tree()
            .revision(commit.as_str())
            .recursive(true)
            .send()
            .map_err(|error| self.failed(&error))?;
        let listed = |entry| match entry {
            RepoTreeEntry::File { path, size, .. } if is_relative_path(&path) => {
                Some(Listed { path, n_bytes: size })
            }
            _ => None,
        };
        Ok(Listing { commit, license, files: tree.into_iter().filter_map(listed).collect() })
    }

    /// The digest that the hub states for a file: it has one for those that git
    /// does not hold itself, which all large ones are.
    pub(crate) fn sha256(&self, commit: &str, file: &Listed) -> Option<String> {
        let asked = self.quick.get_file_metadata().filepath(file.path.as_str()).revision(commit);
        let tag = asked.send().ok()?.etag.to_ascii_lowercase();
        let is_digest = tag.len() == 64 && tag.bytes().all(|c| c.is_ascii_hexdigit());
        is_digest.then_some(tag)
    }

    /// Downloads a file into `dir` and compares it with `expected`, a lower-case
    /// hexadecimal digest. The caller holds the lock of the repository.
    pub(crate) fn fetch(
        &self,
        commit: &str,
        file: &Listed,
        expected: Option<&str>,
        dir: &Path,
        progress: &mut dyn Progress,
    ) -> Result<Finished> {
        progress.message(&format!("downloading {} from the Hugging Face hub", file.path));
        let part = dir.join(format!("{commit}-{}.part", flat(&file.path)));
        let sha256 = self.download(commit, file, &part, progress)?;
        if let Some(expected) = expected
            && sha256 != expected
        {
            cache::remove(&part)?;
            return Err(Error::Sha256 {
                model: format!("{}:{}", self.what, file.path),
                expected: expected.to_owned(),
                actual: sha256,
            });
        }
        Ok(Finished { path: part, n_bytes: file.n_bytes, sha256 })
    }

    /// Completes `part` and returns its digest. What is there already is kept
    /// and digested first.
    fn download(
        &self,
        commit: &str,
        located: &Listed,
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
                .filename(located.path.as_str())
                .revision(commit)
                .range(n_bytes..end)
                .send()
                .map_err(|error| self.failed(&error))?;
            if bytes.len() as u64 != end - n_bytes {
                return Err(self.error(format!(
                    "asked for {} bytes of {} and got {}",
                    end - n_bytes,
                    located.path,
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
