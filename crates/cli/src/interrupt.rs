//! Ctrl-C: the first one asks the engine to stop, a second one ends the process.

use crate::output::note;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that becomes true when the user interrupts.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Installs the handler. Call once per process.
    ///
    /// # Errors
    /// What the system says.
    pub fn install() -> anyhow::Result<Self> {
        let interrupt = Interrupt::default();
        let flag = Arc::clone(&interrupt.0);
        ctrlc::set_handler(move || {
            if flag.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
            note("\nstopping (press again to end at once)\n");
        })?;
        Ok(interrupt)
    }

    /// Whether the user has interrupted.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// The flag, for the engine.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}
