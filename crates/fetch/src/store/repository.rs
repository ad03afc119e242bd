//! Models of the hub: a revision is resolved to a commit, and the files of a commit
//! never change.
//!
//! ```text
//! <cache>/models/hf/ORG/NAME/refs/REVISION       the commit that it was last
//! <cache>/models/hf/ORG/NAME/COMMIT/...          files, as the repository has them
//! <cache>/models/hf/ORG/NAME/COMMIT/.model       which of them are the model
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use super::{Cached, Look, Published, Store, Trust, Work, hub_license};
use crate::cache;
use crate::error::{Attempt, Error, Result};
use crate::hub::{Listing, Repository};
use crate::progress::Progress;
use crate::reference::{HubRef, is_commit};
use crate::selection::{Selection, list};
use crate::sources::{Pulled, Source, Verified};

/// Names the files chosen for a repository given without a file name, written when
/// all are there. A hub path cannot start with a dot here.
const MODEL: &str = ".model";

/// What a repository without a revision is asked for.
const DEFAULT_REVISION: &str = "main";

impl Store {
    /// A model of the hub. What is in the cache is used without asking; a pull that
    /// looks at bytes asks first whether a branch has moved.
    pub(super) fn pull_hub(
        &self,
        wanted: &HubRef,
        look: Look,
        progress: &mut dyn Progress,
    ) -> Result<Pulled> {
        let moves = !wanted.revision().is_some_and(is_commit);
        let ask = look == Look::Bytes && moves && self.hub_endpoint().is_some();
        let cached = match ask {
            true => Cached::Absent,
            false => self.hub_in_cache(wanted, look, progress)?,
        };
        match cached {
            Cached::Sound(found) => return Ok(found),
            Cached::Differs { path, how } if self.hub_endpoint().is_none() => {
                return Err(Error::Damaged { model: wanted.to_string(), path, how });
            }
            Cached::Absent if self.hub_endpoint().is_none() => {
                return Err(self.offline_hub(wanted)?);
            }
            _ => {}
        }
        let key = format!("hf--{}--{}", wanted.org(), wanted.name());
        let work = Work::begin(&self.dir()?, &key, progress)?;
        let cached = match ask {
            true => None,
            false => self.hub_in_cache(wanted, look, progress)?.sound_or_tell(progress),
        };
        if let Some(found) = cached {
            return Ok(found);
        }
        match self.fetch_hub(wanted, &work.dir, look, progress) {
            Ok(pulled) => {
                work.end();
                Ok(pulled)
            }
            Err(error) if error.concerns_this_machine() => Err(error),
            Err(error) => {
                if ask && let Some(found) = self.hub_in_cache(wanted, look, progress)?.sound() {
                    progress.message(&format!("{error}; using what is in the cache"));
                    return Ok(found);
                }
                Err(not_fetched(wanted, &error))
            }
        }
    }

    /// Resolves the revision, and fetches what the commit has and the cache has not.
    fn fetch_hub(
        &self,
        wanted: &HubRef,
        dir: &Path,
        look: Look,
        progress: &mut dyn Progress,
    ) -> Result<Pulled> {
        let endpoint = self.hub_endpoint().flatten();
        let repository = Repository::open(wanted.org(), wanted.name(), endpoint)?;
        let listing = repository.list(wanted.revision())?;
        let selection = select(wanted, &listing).map_err(|reason| repository.error(reason))?;
        let place = self.repository_dir(wanted)?.join(&listing.commit);
        let mut pulled = Pulled {
            path: selection.path_in(&place),
            source: Source::Cache,
            license: listing.license.as_deref().map(hub_license),
            n_bytes: 0,
            verified: Verified::Digest,
        };
        for path in &selection.files {
            let file = listing.file(path).ok_or_else(|| {
                repository.error(format!("{path} is missing, a part of the same model"))
            })?;
            let at = place.join(path);
            pulled.n_bytes += file.n_bytes;
            if let Some(sha256) = cache::read_stamp(&at) {
                let published = Published { n_bytes: Some(file.n_bytes), sha256: &sha256 };
                match cache::trust(&at, published, look, progress)? {
                    Trust::Digest => continue,
                    Trust::Stamp => {
                        pulled.verified = Verified::Stamp;
                        continue;
                    }
                    Trust::Absent | Trust::Differs(_) => {}
                }
            }
            let stated = repository.sha256(&listing.commit, file);
            if stated.is_none() {
                pulled.verified = Verified::Unknown;
            }
            let commit = &listing.commit;
            let finished = repository.fetch(commit, file, stated.as_deref(), dir, progress)?;
            cache::publish(&finished, &at)?;
            pulled.source = Source::Hub;
        }
        if let Some(license) = &listing.license {
            cache::write_atomically(&place.join(LICENSE), license)?;
        }
        if wanted.file().is_none() {
            cache::write_atomically(&place.join(MODEL), &selection.to_text())?;
        }
        let reference = self.reference_file(wanted)?;
        if let Some(parent) = reference.parent() {
            cache::create_dir(parent)?;
        }
        cache::write_atomically(&reference, &listing.commit)?;
        Ok(pulled)
    }

    /// Files of a commit, each with a stamp. The stamp says that all its bytes
    /// arrived, and what they were.
    pub(super) fn hub_in_cache(
        &self,
        wanted: &HubRef,
        look: Look,
        progress: &mut dyn Progress,
    ) -> Result<Cached> {
        let Some(place) = self.commit_dir(wanted)? else { return Ok(Cached::Absent) };
        let Some(selection) = selected(wanted, &place) else { return Ok(Cached::Absent) };
        let (mut n_bytes, mut verified) = (0, Verified::Digest);
        for file in &selection.files {
            let path = place.join(file);
            let Some(sha256) = cache::read_stamp(&path) else { return Ok(Cached::Absent) };
            let published = Published { n_bytes: None, sha256: &sha256 };
            match cache::trust(&path, published, look, progress)? {
                Trust::Absent => return Ok(Cached::Absent),
                Trust::Differs(how) => return Ok(Cached::Differs { path, how }),
                Trust::Stamp => verified = Verified::Stamp,
                Trust::Digest => {}
            }
            let found = fs::metadata(&path).map_err(|error| Error::io("look at", &path, error))?;
            n_bytes += found.len();
        }
        let license = fs::read_to_string(place.join(LICENSE)).ok();
        Ok(Cached::Sound(Pulled {
            path: selection.path_in(&place),
            source: Source::Cache,
            license: license.as_deref().map(hub_license),
            n_bytes,
            verified,
        }))
    }

    /// Where the files of the wanted commit are, if the revision was ever resolved.
    fn commit_dir(&self, wanted: &HubRef) -> Result<Option<PathBuf>> {
        let commit = match wanted.revision().filter(|revision| is_commit(revision)) {
            Some(commit) => Some(commit.to_owned()),
            None => fs::read_to_string(self.reference_file(wanted)?).ok(),
        };
        let repository = self.repository_dir(wanted)?;
        Ok(commit.filter(|commit| is_commit(commit)).map(|commit| repository.join(commit)))
    }

    fn repository_dir(&self, wanted: &HubRef) -> Result<PathBuf> {
        Ok(self.dir()?.join("models").join("hf").join(wanted.org()).join(wanted.name()))
    }

    fn reference_file(&self, wanted: &HubRef) -> Result<PathBuf> {
        // A revision has no `%`, so two never share a file.
        let revision = wanted.revision().unwrap_or(DEFAULT_REVISION).replace('/', "%2F");
        Ok(self.repository_dir(wanted)?.join("refs").join(revision))
    }

    /// What is missing, where nothing may be asked.
    fn offline_hub(&self, wanted: &HubRef) -> Result<Error> {
        let revision = wanted.revision().unwrap_or(DEFAULT_REVISION);
        let missing = match self.commit_dir(wanted)? {
            None => format!("revision {revision} of it was never fetched"),
            Some(place) => match selected(wanted, &place) {
                None => format!("no model of it is at {}", place.display()),
                Some(selection) => {
                    // A file without its stamp may not have come whole.
                    let absent = |file: &&String| {
                        let path = place.join(file);
                        !path.is_file() || cache::read_stamp(&path).is_none()
                    };
                    let absent: Vec<&str> =
                        selection.files.iter().filter(absent).map(String::as_str).collect();
                    let are = if absent.len() > 1 { "are" } else { "is" };
                    format!("{} {are} not, or not wholly, at {}", list(&absent), place.display())
                }
            },
        };
        Ok(Error::Offline { model: wanted.to_string(), missing })
    }
}

/// Names the license of a commit's files.
const LICENSE: &str = ".license";

/// The files that a reference means, of those that the hub lists.
fn select(wanted: &HubRef, listing: &Listing) -> std::result::Result<Selection, String> {
    let paths = listing.paths();
    let what = format!("hf:{}/{}", wanted.org(), wanted.name());
    let Some(file) = wanted.file() else { return Selection::of_repository(&paths, &what) };
    if !paths.contains(&file) {
        let is_model = |path: &&str| path.ends_with(".gguf");
        let models: Vec<&str> = paths.into_iter().filter(is_model).collect();
        return Err(format!("it has no file {file}; it has {}", list(&models)));
    }
    Ok(Selection::of_file(file))
}

/// The files that a reference means, of those in the cache.
fn selected(wanted: &HubRef, place: &Path) -> Option<Selection> {
    match wanted.file() {
        Some(file) => Some(Selection::of_file(file)),
        None => Selection::from_text(&fs::read_to_string(place.join(MODEL)).ok()?),
    }
}

fn not_fetched(wanted: &HubRef, error: &Error) -> Error {
    Error::NotFetched {
        model: wanted.to_string(),
        attempts: vec![Attempt { source: Source::Hub, reason: error.to_string() }],
        by_hand: "the path of a GGUF file or of a model directory downloaded by other means works \
                  too; private and gated repositories need HF_TOKEN"
            .to_owned(),
    }
}
