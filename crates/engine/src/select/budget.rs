//! K_l of every layer, before layer 0.

use super::{LayerBudget, SelectError, Selector};

/// What a prompt asks of the layer budgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetRequest {
    /// K, positions per KV head and layer on average, window and sinks included.
    pub budget: usize,
    /// S.
    pub n_tokens: usize,
    /// Number of layers that take part; layers with a sliding window do not.
    pub n_layers: usize,
}

impl Selector {
    /// K_l for each of `n_layers` layers: positions kept per KV head. They add up
    /// to exactly N * min(K, S), or N * S when everything is kept anyway.
    ///
    /// # Errors
    /// A selector that is not [valid](Selector::validate), a prompt beyond 32-bit
    /// positions, or a K_l below the mandatory set.
    pub fn budgets(&self, request: BudgetRequest) -> Result<Vec<usize>, SelectError> {
        let BudgetRequest { budget, n_tokens, n_layers } = request;
        self.validate()?;
        check_positions(n_tokens)?;
        if self.keeps_all(budget, n_tokens) {
            return Ok(vec![n_tokens; n_layers]);
        }
        let budgets = match self.layers {
            LayerBudget::Uniform => vec![budget; n_layers],
        };
        for &layer_budget in &budgets {
            self.check_budget(layer_budget, n_tokens)?;
        }
        Ok(budgets)
    }

    /// Refuses a K_l that cannot hold the mandatory set of `n_tokens` tokens.
    pub(super) fn check_budget(&self, budget: usize, n_tokens: usize) -> Result<(), SelectError> {
        let needed = self.mandatory(n_tokens).count();
        if self.keeps_all(budget, n_tokens) || budget >= needed {
            return Ok(());
        }
        Err(SelectError::BudgetTooSmall {
            selector: self.to_string(),
            budget,
            needed,
            sinks: self.sinks,
            recent: self.mandatory_tail(),
            n_tokens,
        })
    }
}

/// Refuses prompts whose positions do not fit [`crate::position::Pos`].
pub(super) fn check_positions(n_tokens: usize) -> Result<(), SelectError> {
    let limit = u32::MAX as usize;
    if n_tokens > limit {
        return Err(SelectError::PromptTooLong { n_tokens, limit });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::select::{Observation, PRESETS, Scorer};

    fn budgets(text: &str, budget: usize, n_tokens: usize) -> Result<Vec<usize>, SelectError> {
        let selector: Selector = text.parse().unwrap();
        selector.budgets(BudgetRequest { budget, n_tokens, n_layers: 3 })
    }

    #[test]
    fn uniform_budgets_add_up_exactly() {
        assert_eq!(budgets("snapkv", 64, 1000), Ok(vec![64; 3]));
        assert_eq!(budgets("snapkv", 1000, 1000), Ok(vec![1000; 3]));
        assert_eq!(budgets("snapkv", 4096, 1000), Ok(vec![1000; 3]));
        assert_eq!(budgets("none", 1, 1000), Ok(vec![1000; 3]));
    }

    #[test]
    fn a_short_prompt_is_kept_whole_before_anything_is_checked() {
        for preset in &PRESETS {
            // Below every preset's window, yet no error: nothing is evicted.
            let request = BudgetRequest { budget: 3, n_tokens: 3, n_layers: 2 };
            assert_eq!(preset.selector.budgets(request), Ok(vec![3; 2]), "{}", preset.name);
        }
    }

    #[test]
    fn a_budget_below_the_mandatory_set_is_refused_with_the_numbers() {
        let needed = |text, budget, n_tokens| match budgets(text, budget, n_tokens) {
            Ok(_) => None,
            Err(SelectError::BudgetTooSmall { needed, .. }) => Some(needed),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(needed("snapkv", 31, 1000), Some(32));
        assert_eq!(needed("snapkv", 32, 1000), None);
        assert_eq!(needed("snapkv+sinks(4)", 35, 1000), Some(36));
        assert_eq!(needed("snapkv+sinks(4)", 34, 35), Some(35));
        assert_eq!(needed("streaming", 4, 1000), Some(5));
        assert_eq!(needed("streaming", 5, 1000), None);
        assert_eq!(needed("recent", 0, 1000), Some(1));
        assert_eq!(needed("recency+sinks(2)+recent(8)", 9, 1000), Some(10));

        let error = budgets("snapkv+sinks(4)", 10, 1000).unwrap_err().to_string();
        for part in ["10", "36", "4 sinks", "32 most recent", "1000"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn invalid_selectors_and_endless_prompts_are_refused_first() {
        let observation = Observation { kernel: 4, ..Observation::SNAPKV };
        let selector = Selector::new(Scorer::Observation(observation));
        let request = BudgetRequest { budget: 64, n_tokens: 10, n_layers: 1 };
        assert_eq!(selector.budgets(request), Err(SelectError::EvenKernel { kernel: 4 }));
        if let Ok(n_tokens) = usize::try_from(1u64 << 32) {
            assert!(matches!(
                budgets("recent", 64, n_tokens),
                Err(SelectError::PromptTooLong { .. })
            ));
        }
    }
}
