//! What distinguishes the model families, in the words of GGUF files: for the writer of tiny models
//! and for the dense reference, from the families' own publications and not from the engine.

use tidekv_format::Value;

/// The architecture, as `general.architecture` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arch {
    /// No biases, adjacent-pair RoPE (llama files store Q and K rows permuted for it).
    Llama,
    /// Biases on Q, K and V, half-split RoPE.
    Qwen2,
    /// A norm on every query and key head.
    Qwen3,
    /// Norms around attention and MLP, scaled embeddings, GELU, soft-capped logits, a window in
    /// every layer with an even number.
    Gemma2,
    /// As Gemma 2 without caps, with norms on heads; five layers in six have a window and a RoPE
    /// base of their own.
    Gemma3,
    /// Fused projections, a part of the head rotates, LongRoPE.
    Phi3,
    /// Every fourth layer has no positions.
    SmolLm3,
    /// Scaled embeddings, residuals, attention and logits.
    Granite,
    /// Norms behind attention and MLP only, and on all queries and all keys of a row.
    Olmo2,
}

/// Where norms stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Norms {
    /// In front of attention and MLP.
    Before,
    /// In front and behind.
    Around,
    /// Behind.
    After,
}

/// Trained context of the tiny Phi 3: short enough that a test crosses it.
const PHI3_TRAINED: u32 = 64;

impl Arch {
    /// Every family.
    pub const ALL: [Arch; 9] = [
        Arch::Llama,
        Arch::Qwen2,
        Arch::Qwen3,
        Arch::Gemma2,
        Arch::Gemma3,
        Arch::Phi3,
        Arch::SmolLm3,
        Arch::Granite,
        Arch::Olmo2,
    ];

    /// The name in files and the prefix of its keys.
    pub fn name(self) -> &'static str {
        match self {
            Arch::Llama => "llama",
            Arch::Qwen2 => "qwen2",
            Arch::Qwen3 => "qwen3",
            Arch::Gemma2 => "gemma2",
            Arch::Gemma3 => "gemma3",
            Arch::Phi3 => "phi3",
            Arch::SmolLm3 => "smollm3",
            Arch::Granite => "granite",
            Arch::Olmo2 => "olmo2",
        }
    }

    /// The family of that name.
    pub fn from_name(name: &str) -> Option<Arch> {
        Arch::ALL.into_iter().find(|arch| arch.name() == name)
    }

    /// Whether it is a Gemma.
    pub fn is_gemma(self) -> bool {
        matches!(self, Arch::Gemma2 | Arch::Gemma3)
    }

    /// Whether a sliding window belongs to the family.
    pub fn windowed(self) -> bool {
        self.is_gemma()
    }

    /// Whether `layer` has the file's window.
    pub fn has_window(self, layer: usize) -> bool {
        match self {
            Arch::Gemma2 => layer.is_multiple_of(2),
            Arch::Gemma3 => layer % 6 != 5,
            _ => true,
        }
    }

    /// Layers that show the family's pattern once, and one more.
    pub(crate) fn pattern_layers(self) -> usize {
        match self {
            Arch::Gemma3 => 7,
            Arch::SmolLm3 => 5,
            _ => 3,
        }
    }

    /// Whether positions enter `layer`.
    pub fn rotates(self, layer: usize) -> bool {
        self != Arch::SmolLm3 || layer % 4 != 3
    }

    /// Whether neighbouring dimensions of a head rotate together, not its halves.
    pub fn pairs_neighbours(self) -> bool {
        matches!(self, Arch::Llama | Arch::SmolLm3 | Arch::Granite)
    }

    /// Whether Q, K, V and gate, up are one matrix each.
    pub fn is_fused(self) -> bool {
        self == Arch::Phi3
    }

    /// Where norms stand.
    pub fn norms(self) -> Norms {
        match self {
            Arch::Gemma2 | Arch::Gemma3 => Norms::Around,
            Arch::Olmo2 => Norms::After,
            _ => Norms::Before,
        }
    }

    /// Lengths of the norms of queries and keys, if there are any.
    pub fn qk_norm(self, cols: [usize; 2], head_dim: usize) -> Option<[usize; 2]> {
        match self {
            Arch::Qwen3 | Arch::Gemma3 => Some([head_dim; 2]),
            Arch::Olmo2 => Some(cols),
            _ => None,
        }
    }

    /// Dimensions of a head that LongRoPE rotates, where the family has it.
    pub(crate) fn long_rope_dims(self, head_dim: usize) -> Option<usize> {
        (self == Arch::Phi3).then_some(head_dim / 4 * 3)
    }

    /// Sets the keys that only this family has: numbers that bite in a tiny model.
    pub(crate) fn set_numbers(self, head_dim: usize, set: &mut impl FnMut(&str, Value)) {
        match self {
            Arch::Gemma2 => {
                set("attn_logit_softcapping", Value::F32(2.0));
                set("final_logit_softcapping", Value::F32(3.0));
            }
            Arch::Phi3 => {
                let dims = self.long_rope_dims(head_dim).unwrap_or(head_dim);
                set("rope.dimension_count", Value::U32(dims as u32));
                set("rope.scaling.original_context_length", Value::U32(PHI3_TRAINED));
            }
            Arch::Granite => {
                set("embedding_scale", Value::F32(3.0));
                set("residual_scale", Value::F32(0.4));
                set("attention.scale", Value::F32(0.3));
                set("logit_scale", Value::F32(2.0));
            }
            _ => {}
        }
    }
}
