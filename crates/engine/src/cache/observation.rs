//! The observation window: the last W queries of the prompt.

use crate::backend::Backend;
use crate::error::Error;
use crate::memory::{Accountant, Charged, Component, layout};
use crate::model::Shape;
use crate::schedule::Span;
use std::ops::Range;

/// Queries of the prompt's last W tokens, post-rotation, `[Hq, W, D]` f32, and
/// their softmax statistics. The window belongs to the prompt, not to a chunk:
/// it may span the last chunks.
pub struct Observation<B: Backend + ?Sized> {
    /// Queries, then maxima `[Hq, W]`, then normalisers `[Hq, W]`.
    pub buffer: Charged<B::Buffer>,
    /// W.
    pub window: usize,
    /// Absolute position of the window's first query.
    pub first: usize,
}

impl<B: Backend> Observation<B> {
    /// Allocates the window of a prompt of `n_tokens` tokens.
    ///
    /// # Errors
    /// The memory limit, or the system's refusal.
    pub fn new(
        (backend, accountant): (&B, &Accountant),
        shape: &Shape,
        window: usize,
        n_tokens: usize,
    ) -> Result<Self, Error> {
        let bytes = layout::observation(shape, window);
        let buffer =
            Charged::new(accountant, Component::Observation, bytes, || Ok(backend.alloc(bytes)?))?;
        Ok(Observation { buffer, window, first: n_tokens.saturating_sub(window) })
    }

    /// Rows of `chunk` that belong to the window, and the window row of the
    /// first of them.
    pub(crate) fn rows_in(&self, chunk: Span) -> Option<(Range<usize>, usize)> {
        let from = self.first.max(chunk.start);
        let rows = from.checked_sub(chunk.start)?..chunk.len;
        (!rows.is_empty()).then(|| (rows, from - self.first))
    }
}
