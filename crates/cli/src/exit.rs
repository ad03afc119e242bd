//! Exit codes: 0 ok, 1 failed, 2 usage (clap), 3 refused by the memory plan, 130
//! interrupted.

use std::io;
use std::process::ExitCode;

/// A command that ended without its result, though nothing is broken.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The memory plan does not fit. What would has been said already, or is in
    /// the text.
    #[error("{0}")]
    Refused(String),
    /// The user pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

const FAILED: u8 = 1;
const REFUSED: u8 = 3;
const INTERRUPTED: u8 = 130;

/// Prints the error, if any, and chooses the exit code.
pub fn report(outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    if is_broken_pipe(&error) {
        // The reader has had enough, `tidekv ... | head` for example.
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {error:#}");
    ExitCode::from(code(&error))
}

fn code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        match cause.downcast_ref::<Ended>() {
            Some(Ended::Refused(_)) => return REFUSED,
            Some(Ended::Interrupted) => return INTERRUPTED,
            None => {}
        }
        match cause.downcast_ref::<tidekv::Error>() {
            Some(tidekv::Error::Refused(_)) => return REFUSED,
            Some(tidekv::Error::Cancelled) => return INTERRUPTED,
            _ => {}
        }
        if matches!(cause.downcast_ref(), Some(tidekv_fetch::Error::Cancelled)) {
            return INTERRUPTED;
        }
    }
    FAILED
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().map(io::Error::kind)
    };
    error.chain().any(|cause| kind(cause) == Some(io::ErrorKind::BrokenPipe))
}
