//! What happens when a mapped file gets shorter while it is read: SIGBUS, and the handler that turns
//! it into a sentence.

use std::io;

/// What [`exit_when_truncated`] writes to standard error.
pub const TRUNCATED_MESSAGE: &str = "error: a mapped model file was truncated while it was read; \
     nothing after that point could be trusted, so the run was ended. Replace a model in use by \
     renaming a new file over it, and load it again\n";

/// From now on a read past the end of a mapped file that has become shorter writes
/// [`TRUNCATED_MESSAGE`] to standard error and ends the process with exit code 1. Without it the
/// process dies of SIGBUS and says nothing.
///
/// It belongs to programs, not to libraries: it sets the signal disposition of the whole process.
/// Buffered output that has not been flushed is lost. Every other SIGBUS (a broken
/// memory module, `kill`) ends it as if there were no handler.
///
/// Linux only. Elsewhere it does nothing, because there a stack overflow can arrive as the same
/// signal and nothing tells the two apart.
///
/// # Errors
///
/// The system refuses to set the handler.
pub fn exit_when_truncated() -> io::Result<()> {
    install()
}

#[cfg(not(target_os = "linux"))]
fn install() -> io::Result<()> {
    Ok(())
}

#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn install() -> io::Result<()> {
    use std::mem::zeroed;
    use std::ptr::null_mut;

    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
    // SAFETY: `sigaction` is a plain C structure for which all bytes zero is a valid value (an empty
    // mask, no flags); the fields that matter are set below.
    let mut action: libc::sigaction = unsafe { zeroed() };
    action.sa_sigaction = handler as usize;
    // On the stack that the standard library gave the thread for signals, where it has one.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `action` is initialised, has the three-argument handler that SA_SIGINFO announces, and
    // outlives the call, which copies it; a null third argument asks for no old action.
    match unsafe { libc::sigaction(libc::SIGBUS, &action, null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Runs in the thread that read, at any point of its work. Only functions that POSIX lists as safe in
/// a signal handler are called; nothing is allocated, locked or formatted.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: with SA_SIGINFO the kernel passes a valid `siginfo_t` (sigaction(2)), and `si_code` is
    // set for every signal.
    let code = unsafe { (*info).si_code };
    if code != libc::BUS_ADRERR {
        // Not ours: what the system does by default, as soon as this handler returns and the signal
        // is no longer blocked.
        // SAFETY: `signal` and `raise` are async-signal-safe, and SIG_DFL is a valid disposition.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
        return;
    }
    // SAFETY: `write` and `_exit` are async-signal-safe; the message is a static of that length. What
    // `write` returns changes nothing: the process ends.
    unsafe {
        libc::write(
            libc::STDERR_FILENO,
            TRUNCATED_MESSAGE.as_ptr().cast(),
            TRUNCATED_MESSAGE.len(),
        );
        libc::_exit(1)
    }
}
