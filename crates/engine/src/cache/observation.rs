//! The observation window: the last W queries of the prompt.

use crate::backend::Backend;
use crate::error::Error;
use crate::memory::{Accountant, Charged, Component, layout};
use crate::model::Shape;
use crate::schedule::Span;
use std::ops::Range;

/// Queries of a prompt's last W tokens, post-rotation, `[Hq, W, D]` f32, and
/// their softmax statistics. The window belongs to the prompt, not to a chunk:
/// it may span the last chunks. The sequences of a batch use it in turn.
pub struct Observation<B: Backend + ?Sized> {
    /// Queries, then maxima `[Hq, W]`, then normalisers `[Hq, W]`; the rest is
    /// room for longer windows.
    pub buffer: Charged<B::Buffer>,
    /// W of the sequence at work.
    pub window: usize,
    /// Absolute position of the window's first query.
    pub first: usize,
}

impl<B: Backend> Observation<B> {
    /// Allocates room for windows of up to `room` queries.
    ///
    /// # Errors
    /// The memory limit, or the system's refusal.
    pub fn new(
        (backend, accountant): (&B, &Accountant),
        shape: &Shape,
        room: usize,
    ) -> Result<Self, Error> {
        let bytes = layout::observation(shape, room);
        let buffer =
            Charged::new(accountant, Component::Observation, bytes, || Ok(backend.alloc(bytes)?))?;
        Ok(Observation { buffer, window: 0, first: 0 })
    }

    /// Looks at the last `window` of a prompt's `n_tokens` tokens. `window` is at
    /// most the room there is.
    pub fn look_at(&mut self, window: usize, n_tokens: usize) {
        self.window = window;
        self.first = n_tokens.saturating_sub(window);
    }

    /// Rows of `chunk` that belong to the window, and the window row of the
    /// first of them.
    pub(crate) fn rows_in(&self, chunk: Span) -> Option<(Range<usize>, usize)> {
        let from = self.first.max(chunk.start);
        let rows = from.checked_sub(chunk.start)?..chunk.len;
        (!rows.is_empty()).then(|| (rows, from - self.first))
    }
}
