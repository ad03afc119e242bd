//! What a long download says to the person waiting, and how that person stops it.

/// Receives what a download has to say; also the place where it is cancelled.
pub trait Progress {
    /// One line of news, without a line end.
    fn message(&mut self, text: &str);

    /// `done` of about `total` bytes of the current phase (download, then
    /// check). Called a few times a second; `total` is 0 where it is unknown.
    fn bytes(&mut self, done: u64, total: u64);

    /// Asked between two reads; `true` ends the download with
    /// [`Error::Cancelled`](crate::Error::Cancelled) and keeps the finished parts.
    fn cancelled(&self) -> bool {
        false
    }
}

/// A [`Progress`] that tells nobody and never cancels.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn message(&mut self, _text: &str) {}

    fn bytes(&mut self, _done: u64, _total: u64) {}
}
