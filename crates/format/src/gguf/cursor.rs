//! A bounds-checked little-endian reader over the header.

use crate::error::{CutOff, FormatError, Limit};
use crate::limits::MAX_HEADER_BYTES;

/// Reads forward over `bytes`; every length is compared with what is left before it is used.
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Length of the whole file, for messages.
    file_len: u64,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8], file_len: u64) -> Self {
        let cap = usize::try_from(MAX_HEADER_BYTES).unwrap_or(usize::MAX);
        Cursor { bytes: &bytes[..bytes.len().min(cap)], at: 0, file_len }
    }

    /// Bytes read so far, which is the absolute position in the file.
    pub(crate) fn position(&self) -> u64 {
        self.at as u64
    }

    /// Refuses unless `n` more bytes are there, without reading them. Called with the least that
    /// `count` elements can take before anything is allocated for them.
    pub(crate) fn require(&self, n: u64, what: impl FnOnce() -> String) -> Result<(), FormatError> {
        let left = (self.bytes.len() - self.at) as u64;
        if n <= left {
            return Ok(());
        }
        let expected = self.position().saturating_add(n);
        if expected > MAX_HEADER_BYTES {
            return Err(FormatError::TooLarge {
                at: what(),
                limit: Limit::HeaderBytes,
                value: expected,
            });
        }
        Err(FormatError::Truncated {
            expected,
            actual: self.file_len.min(self.bytes.len() as u64),
            missing: CutOff::Header(what()),
        })
    }

    /// The next `n` bytes.
    pub(crate) fn take(
        &mut self,
        n: u64,
        what: impl FnOnce() -> String,
    ) -> Result<&'a [u8], FormatError> {
        self.require(n, what)?;
        let n = usize::try_from(n).expect("`require` found that many bytes in a slice");
        let taken = &self.bytes[self.at..self.at + n];
        self.at += n;
        Ok(taken)
    }

    /// The next `N` bytes as an array, for the `from_le_bytes` of a scalar.
    pub(crate) fn scalar<const N: usize>(
        &mut self,
        what: impl FnOnce() -> String,
    ) -> Result<[u8; N], FormatError> {
        let bytes = self.take(N as u64, what)?;
        Ok(*bytes.first_chunk().expect("`take` returned N bytes"))
    }

    pub(crate) fn u32(&mut self, what: impl FnOnce() -> String) -> Result<u32, FormatError> {
        self.scalar(what).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, what: impl FnOnce() -> String) -> Result<u64, FormatError> {
        self.scalar(what).map(u64::from_le_bytes)
    }

    /// A GGUF string: a 64-bit length, then that many bytes of UTF-8.
    pub(crate) fn string(
        &mut self,
        cap: Limit,
        what: impl Fn() -> String,
    ) -> Result<&'a str, FormatError> {
        let len = self.u64(&what)?;
        cap.check(len, &what)?;
        let start = self.position();
        let bytes = self.take(len, &what)?;
        std::str::from_utf8(bytes).map_err(|e| FormatError::BadUtf8 {
            at: what(),
            offset: start + e.valid_up_to() as u64,
        })
    }
}
