//! A model on the CPU: matrices stay in the mapped file, vectors are copied.

use std::sync::Arc;
use tidekv::backend::BackendError;
use tidekv::model::{
    LayerTensors, Matrix, ModelError, ModelFile, ModelSpec, RopeFrequencies, RopeStyle, Shape,
    Vector,
};
use tidekv_format::TensorType;
use tidekv_kernels::quant::{BlockType, WeightView};
use tidekv_kernels::rope::RopeStyle as KernelStyle;

/// Vectors of one layer.
pub(crate) struct LayerVectors {
    pub(crate) attn_norm: Vec<f32>,
    pub(crate) mlp_norm: Vec<f32>,
    /// Biases of query, key and value.
    pub(crate) bias: Option<[Vec<f32>; 3]>,
}

/// A model on the CPU.
pub struct CpuWeights {
    file: Arc<ModelFile>,
    pub(crate) shape: Shape,
    pub(crate) norm_eps: f32,
    pub(crate) rope: RopeFrequencies,
    pub(crate) rope_style: KernelStyle,
    pub(crate) layers: Vec<LayerVectors>,
    pub(crate) final_norm: Vec<f32>,
}

impl CpuWeights {
    /// Checks that every matrix can be read, and copies the vectors.
    pub(crate) fn new(spec: &ModelSpec, file: &Arc<ModelFile>) -> Result<Self, BackendError> {
        let tensors = &file.tensors;
        for layer in &tensors.layers {
            for matrix in matrices(layer) {
                checked_view(file, matrix)?;
            }
        }
        checked_view(file, &tensors.embedding)?;
        checked_view(file, &tensors.head)?;
        let read = |vector: &Vector| vector.read(&file.gguf);
        let layer = |layer: &LayerTensors| LayerVectors {
            attn_norm: read(&layer.attn_norm),
            mlp_norm: read(&layer.mlp_norm),
            bias: layer.bias.as_ref().map(|bias| bias.each_ref().map(read)),
        };
        Ok(CpuWeights {
            file: Arc::clone(file),
            shape: spec.shape.clone(),
            norm_eps: spec.norm_eps,
            rope: spec.rope.frequencies()?,
            rope_style: match spec.rope.style {
                RopeStyle::Interleaved => KernelStyle::Interleaved,
                RopeStyle::Half => KernelStyle::Half,
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

    /// A matrix as the kernels read it.
    pub(crate) fn view<'a>(&'a self, matrix: &Matrix) -> WeightView<'a> {
        checked_view(&self.file, matrix)
            .expect("every matrix was checked when the model was loaded")
    }
}

fn matrices(layer: &LayerTensors) -> [&Matrix; 7] {
    let LayerTensors { q, k, v, o, gate, up, down, .. } = layer;
    [q, k, v, o, gate, up, down]
}

fn checked_view<'a>(file: &'a ModelFile, matrix: &Matrix) -> Result<WeightView<'a>, ModelError> {
    let name = &matrix.tensor.name;
    let found = matrix.tensor.ty;
    let block = block_type(found).ok_or_else(|| ModelError::TensorType {
        name: name.clone(),
        found: found.to_string(),
        supported: BlockType::ALL.map(BlockType::name).join(", "),
    })?;
    let bytes = file.gguf.bytes(&matrix.tensor);
    WeightView::new(block, matrix.rows, matrix.cols, bytes)
        .map_err(|error| ModelError::Feature { feature: format!("tensor `{name}`: {error}") })
}

fn block_type(ty: TensorType) -> Option<BlockType> {
    Some(match ty {
        TensorType::F32 => BlockType::F32,
        TensorType::F16 => BlockType::F16,
        TensorType::BF16 => BlockType::BF16,
        TensorType::Q4_1 => BlockType::Q4_1,
        TensorType::Q5_0 => BlockType::Q5_0,
        TensorType::Q8_0 => BlockType::Q8_0,
        TensorType::Q4_K => BlockType::Q4K,
        TensorType::Q6_K => BlockType::Q6K,
        _ => return None,
    })
}
