//! Hidden states of a prefill, after every layer.

use tidekv::memory::StepMemory;
use tidekv::schedule::Step;
use tidekv::{Observer, Tap};

/// `[N + 1][S * d_model]`: embeddings, then the output of each layer.
#[derive(Debug, Clone, Default)]
pub struct States(pub Vec<Vec<f32>>);

impl Observer for States {
    fn after(&mut self, step: &Step, _: &StepMemory, tap: &dyn Tap) {
        let Some((_, rows)) = tap.hidden() else { return };
        let index = step.layer().map_or(0, |layer| layer + 1);
        if self.0.len() <= index {
            self.0.resize(index + 1, Vec::new());
        }
        // Chunks pass in causal order, in every schedule.
        self.0[index].extend(rows);
    }
}
