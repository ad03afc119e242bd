//! Logits of prefill: the final norm and the output projection of rows of the bridge.

use crate::activation::{Regions, Strides};
use crate::backend::{Cpu, scale_by};
use crate::layer::BridgeRows;
use crate::packed::Operand;
use crate::product::RowsMut;
use crate::weights::CpuWeights;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidekv::backend::{BackendError, Workspace};
use tidekv::bridge::Bridge;
use tidekv_kernels::attention::soft_cap;
use tidekv_kernels::element::{self, all_finite};
use tidekv_kernels::gemm::Epilogue;
use tidekv_kernels::norm::rms_norm;

impl Cpu {
    /// Logits `[rows, vocab]` of bridge rows, which the activations have room for.
    pub(crate) fn logit_rows(
        &self,
        weights: &CpuWeights,
        (bridge, rows): (&Bridge<Self>, Range<usize>),
        work: &mut Workspace<Self>,
        logits: &mut [f32],
    ) -> Result<(), BackendError> {
        let (compute, shape) = (self.compute(), &weights.shape);
        let strides = Strides::new(shape);
        let slab = self.sizes.split(shape, work.scratch.floats_mut()).slab;
        let Regions { x, y, .. } = strides.split(work.activation.floats_mut(), work.rows);
        let x = &mut x[..rows.len() * strides.x];
        let input = BridgeRows::of(bridge);
        let stored = &bridge.buffer.bytes_view()[rows.start * input.row_bytes..];
        let hidden = &mut y[..shape.d_model];
        for (x, stored) in x.chunks_exact_mut(strides.x).zip(stored.chunks_exact(input.row_bytes)) {
            element::load(self.isa, input.element, stored, hidden);
            let eps = weights.arithmetic.norm_eps;
            rms_norm(self.isa, hidden, &weights.final_norm, eps, &mut x[..shape.d_model]);
        }

        let a = compute.rows(RowsMut { data: x, stride: strides.x }, shape.d_model);
        let logits = &mut logits[..rows.len() * shape.vocab];
        let c = RowsMut { data: &mut *logits, stride: shape.vocab };
        let head = Operand { weights: weights.head(), panels: None };
        compute.product(head, (a, rows.len()), c, Epilogue::Store, slab);
        let first_faulty = AtomicUsize::new(usize::MAX);
        compute.pool.each(logits.chunks_exact_mut(shape.vocab).zip(rows), |(logits, row)| {
            self.finish_logits(weights, logits);
            if !all_finite(self.isa, logits) {
                first_faulty.fetch_min(row, Ordering::Relaxed);
            }
        });
        match first_faulty.into_inner() {
            usize::MAX => Ok(()),
            position => Err(BackendError::NonFinite { place: "the logits".to_owned(), position }),
        }
    }

    /// What some models do with the products of the output projection.
    pub(crate) fn finish_logits(&self, weights: &CpuWeights, logits: &mut [f32]) {
        scale_by(logits, weights.arithmetic.logit_scale);
        if let Some(cap) = weights.arithmetic.logit_softcap {
            soft_cap(self.isa, cap, logits);
        }
    }
}
