//! A model on the CPU: matrices stay in the mapped file, vectors are copied.

use std::sync::Arc;
use tidekv::backend::BackendError;
use tidekv::model::{
    Activation, Arithmetic, HeadRows, LayerTensors, Matrix, ModelError, ModelFile, ModelSpec,
    RopeStyle, Shape, Vector,
};
use tidekv_format::TensorType;
use tidekv_kernels::gemm::Activation as KernelActivation;
use tidekv_kernels::quant::{BlockType, RowOrder, WeightView};
use tidekv_kernels::rope::RopeStyle as KernelStyle;

/// Vectors of one layer.
pub(crate) struct LayerVectors {
    pub(crate) attn_norm: Option<Vec<f32>>,
    pub(crate) post_attn_norm: Option<Vec<f32>>,
    pub(crate) mlp_norm: Option<Vec<f32>>,
    pub(crate) post_mlp_norm: Option<Vec<f32>>,
    /// Biases of query, key and value.
    pub(crate) bias: Option<[Vec<f32>; 3]>,
    /// Norms of queries and keys: of a head each, or of all heads together.
    pub(crate) qk_norm: Option<[Vec<f32>; 2]>,
}

/// A model on the CPU.
pub struct CpuWeights {
    file: Arc<ModelFile>,
    pub(crate) shape: Shape,
    pub(crate) arithmetic: Arithmetic,
    pub(crate) rope_style: KernelStyle,
    pub(crate) layers: Vec<LayerVectors>,
    pub(crate) final_norm: Vec<f32>,
}

impl CpuWeights {
    /// Checks that every matrix can be read, and copies the vectors.
    pub(crate) fn new(spec: &ModelSpec, file: &Arc<ModelFile>) -> Result<Self, BackendError> {
        let tensors = &file.tensors;
        for layer in &tensors.layers {
            for matrix in layer.matrices() {
                checked_view(file, matrix)?;
            }
        }
        checked_view(file, &tensors.embedding)?;
        checked_view(file, &tensors.head)?;
        let read = |vector: &Vector| vector.read(&file.store);
        let optional = |vector: &Option<Vector>| vector.as_ref().map(read);
        let layer = |layer: &LayerTensors| LayerVectors {
            attn_norm: optional(&layer.attn_norm),
            post_attn_norm: optional(&layer.post_attn_norm),
            mlp_norm: optional(&layer.mlp_norm),
            post_mlp_norm: optional(&layer.post_mlp_norm),
            bias: layer.bias.as_ref().map(|bias| bias.each_ref().map(read)),
            qk_norm: layer.qk_norm.as_ref().map(|norms| norms.each_ref().map(read)),
        };
        Ok(CpuWeights {
            file: Arc::clone(file),
            shape: spec.shape.clone(),
            arithmetic: spec.arithmetic,
            // One family pairs dimensions in one way.
            rope_style: match spec.ropes.first().map(|rope| rope.style) {
                Some(RopeStyle::Interleaved) => KernelStyle::Interleaved,
                Some(RopeStyle::Half) | None => KernelStyle::Half,
            },
            layers: tensors.layers.iter().map(layer).collect(),
            final_norm: read(&tensors.final_norm),
        })
    }

    pub(crate) fn matrices(&self, layer: usize) -> &LayerTensors {
        &self.file.tensors.layers[layer]
    }

    pub(crate) fn embedding(&self) -> WeightView<'_> {
        self.view(&self.file.tensors.embedding)
    }

    pub(crate) fn head(&self) -> WeightView<'_> {
        self.view(&self.file.tensors.head)
    }

    /// Nonlinearity of the MLP.
    pub(crate) fn activation(&self) -> KernelActivation {
        match self.arithmetic.activation {
            Activation::Silu => KernelActivation::Silu,
            Activation::GeluTanh => KernelActivation::GeluTanh,
        }
    }

    /// A matrix as the kernels read it.
    pub(crate) fn view<'a>(&'a self, matrix: &Matrix) -> WeightView<'a> {
        checked_view(&self.file, matrix)
            .expect("every matrix was checked when the model was loaded")
    }
}

fn checked_view<'a>(file: &'a ModelFile, matrix: &Matrix) -> Result<WeightView<'a>, ModelError> {
    let name = &matrix.tensor.name;
    let found = matrix.tensor.ty;
    let block = block_type(found).ok_or_else(|| ModelError::TensorType {
        name: name.clone(),
        found: found.to_string(),
        supported: BlockType::ALL.map(BlockType::name).join(", "),
    })?;
    let bytes = file.store.bytes(&matrix.tensor);
    let row_bytes = block.row_bytes(matrix.cols);
    // A first row behind the end leaves nothing, which the view refuses.
    let part = row_bytes.map_or(bytes, |row_bytes| {
        let rows = |rows: usize| rows.saturating_mul(row_bytes).min(bytes.len());
        let first = rows(matrix.first_row);
        &bytes[first..rows(matrix.first_row.saturating_add(matrix.rows)).max(first)]
    });
    let view = WeightView::new(block, matrix.rows, matrix.cols, part)
        .map_err(|error| ModelError::Feature { feature: format!("tensor `{name}`: {error}") })?;
    Ok(match matrix.head_rows {
        HeadRows::AsStored => view,
        // The shape was checked: D is even, and the rows are whole heads.
        HeadRows::NeighbouringHalves { head_dim } => {
            view.with_order(RowOrder::NeighbouringHalves { head_dim })
        }
    })
}

fn block_type(ty: TensorType) -> Option<BlockType> {
    Some(match ty {
        TensorType::F32 => BlockType::F32,
        TensorType::F16 => BlockType::F16,
        TensorType::BF16 => BlockType::BF16,
        TensorType::Q4_0 => BlockType::Q4_0,
        TensorType::Q4_1 => BlockType::Q4_1,
        TensorType::Q5_0 => BlockType::Q5_0,
        TensorType::Q5_1 => BlockType::Q5_1,
        TensorType::Q8_0 => BlockType::Q8_0,
        TensorType::Q8_1 => BlockType::Q8_1,
        TensorType::Q2_K => BlockType::Q2K,
        TensorType::Q3_K => BlockType::Q3K,
        TensorType::Q4_K => BlockType::Q4K,
        TensorType::Q5_K => BlockType::Q5K,
        TensorType::Q6_K => BlockType::Q6K,
        TensorType::Q8_K => BlockType::Q8K,
        TensorType::IQ4_NL => BlockType::IQ4NL,
        TensorType::IQ4_XS => BlockType::IQ4XS,
        TensorType::MXFP4 => BlockType::MXFP4,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_and_format_agree_on_the_blocks_of_every_type() {
        // Numbers of ggml are dense and below 64.
        let types = (0..64).map(TensorType::from_id);
        let known: Vec<(TensorType, BlockType)> =
            types.filter_map(|ty| Some((ty, block_type(ty)?))).collect();
        for (ty, block) in &known {
            let format = ty.block().unwrap();
            let kernels = (block.block_len() as u64, block.block_bytes() as u64);
            assert_eq!((format.len, format.bytes), kernels, "{ty}");
            for blocks in [0, 1, 7] {
                let cols = blocks * block.block_len();
                let bytes = block.row_bytes(cols).map(|bytes| bytes as u64);
                assert_eq!(ty.row_bytes(cols as u64), bytes, "{ty}, {blocks} blocks");
            }
        }
        let missing = |block: &&BlockType| known.iter().all(|(_, known)| known != *block);
        assert_eq!(BlockType::ALL.iter().find(missing), None, "a type that no file can have");
        assert_eq!(known.len(), BlockType::ALL.len());
    }
}
