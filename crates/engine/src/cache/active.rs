//! Uncompressed K/V of a layer that is being built.

use crate::backend::Backend;
use crate::element::Element;
use crate::error::Error;
use crate::memory::{Accountant, Charged, Component};
use crate::model::Shape;

/// All keys and values of one layer, in the backend's own layout.
pub struct ActiveKv<B: Backend + ?Sized> {
    /// Keys of all KV heads.
    pub k: Charged<B::Buffer>,
    /// Values of all KV heads.
    pub v: Charged<B::Buffer>,
    /// Storage type.
    pub element: Element,
    /// Tokens there is room for.
    pub capacity: usize,
    /// Tokens appended so far, at positions `0..len`.
    pub len: usize,
}

impl<B: Backend> ActiveKv<B> {
    /// Allocates an empty cache with room for `n_tokens` tokens.
    ///
    /// # Errors
    /// The memory limit, or the system's refusal.
    pub fn new(
        (backend, accountant): (&B, &Accountant),
        shape: &Shape,
        element: Element,
        n_tokens: usize,
    ) -> Result<Self, Error> {
        let bytes = backend.sizes().active_half(shape, element, n_tokens);
        let half =
            || Charged::new(accountant, Component::ActiveKv, bytes, || Ok(backend.alloc(bytes)?));
        Ok(ActiveKv { k: half()?, v: half()?, element, capacity: n_tokens, len: 0 })
    }

    /// The same memory for another layer or sequence. Rows beyond `len` are never read, so
    /// nothing is cleared.
    pub(crate) fn emptied(self) -> Self {
        ActiveKv { len: 0, ..self }
    }
}
