//! Ctrl-C and termination: while something is computed the first one asks it to stop; at any other
//! time, and the second time, it ends the process.

use crate::exit::INTERRUPTED;
use crate::output::note_lines;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that becomes true when the user interrupts.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    set: Arc<AtomicBool>,
    /// Whether somebody looks at the flag often.
    watched: Arc<AtomicBool>,
}

/// While it lives, an interruption is left to whoever looks at the flag.
pub struct Watched<'a>(&'a AtomicBool);

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

impl Interrupt {
    /// Installs the handler. Call once per process, before anything that may wait.
    ///
    /// # Errors
    /// What the system says.
    pub fn install() -> anyhow::Result<Self> {
        let interrupt = Interrupt::default();
        let Interrupt { set, watched } = interrupt.clone();
        ctrlc::set_handler(move || {
            let again = set.swap(true, Ordering::SeqCst);
            if again || !watched.load(Ordering::SeqCst) {
                // Opening a file or a connection may wait for ever, and there is nothing to lose.
                note_lines("\ninterrupted\n");
                std::process::exit(INTERRUPTED.into());
            }
            note_lines("\nstopping (press again to end at once)\n");
        })?;
        Ok(interrupt)
    }

    /// From now on something is computed that can stop in an orderly way, and looks at the flag
    /// between its steps.
    pub fn watch(&self) -> Watched<'_> {
        self.watched.store(true, Ordering::SeqCst);
        Watched(&self.watched)
    }

    /// Whether the user has interrupted.
    pub fn is_set(&self) -> bool {
        self.set.load(Ordering::SeqCst)
    }

    /// The flag, for the engine.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.set)
    }
}
