//! From a GGUF file to a [`ModelSpec`] and a table of checked tensors. Nothing
//! but the header is read.

use super::names::{self, LayerTensor};
use super::{
    Architecture, HeadKind, ModelError, ModelSpec, RopeScaling, RopeSpec, RopeStyle, Shape,
};
use crate::error::Error;
use std::path::Path;
use tidekv_format::{GgufFile, Metadata, TensorInfo, TensorType};

/// A matrix of the file, `[rows, cols]` row-major: `rows` outputs of `cols`
/// inputs each.
#[derive(Debug, Clone)]
pub struct Matrix {
    /// Entry of the file's tensor table.
    pub tensor: TensorInfo,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
}

/// A vector of the file, stored as F32 or F16 or BF16.
#[derive(Debug, Clone)]
pub struct Vector {
    /// Entry of the file's tensor table.
    pub tensor: TensorInfo,
    /// Length.
    pub len: usize,
}

/// The tensors of one layer.
#[derive(Debug, Clone)]
pub struct LayerTensors {
    /// Norm before attention, `[d_model]`.
    pub attn_norm: Vector,
    /// Query projection, `[Hq * D, d_model]`.
    pub q: Matrix,
    /// Key projection, `[Hkv * D, d_model]`.
    pub k: Matrix,
    /// Value projection, `[Hkv * D, d_model]`.
    pub v: Matrix,
    /// Biases of the three, where the model has them.
    pub bias: Option<[Vector; 3]>,
    /// Output projection, `[d_model, Hq * D]`.
    pub o: Matrix,
    /// Norm before the MLP, `[d_model]`.
    pub mlp_norm: Vector,
    /// Gate projection, `[d_ff, d_model]`.
    pub gate: Matrix,
    /// Up projection, `[d_ff, d_model]`.
    pub up: Matrix,
    /// Down projection, `[d_model, d_ff]`.
    pub down: Matrix,
}

/// All tensors of a model, checked against its shape.
#[derive(Debug, Clone)]
pub struct Tensors {
    /// Embedding table, `[vocab, d_model]`.
    pub embedding: Matrix,
    /// Output projection, `[vocab, d_model]`; the embedding when tied.
    pub head: Matrix,
    /// Final norm, `[d_model]`.
    pub final_norm: Vector,
    /// Layers, `[N]`.
    pub layers: Vec<LayerTensors>,
}

impl Tensors {
    /// Every vector of the model, in a fixed order.
    pub fn vectors(&self) -> impl Iterator<Item = &Vector> {
        let layers = self.layers.iter().flat_map(|layer| {
            [&layer.attn_norm, &layer.mlp_norm].into_iter().chain(layer.bias.iter().flatten())
        });
        std::iter::once(&self.final_norm).chain(layers)
    }

    /// Bytes of all vectors as f32, which is how backends hold them.
    pub fn vector_bytes(&self) -> u64 {
        self.vectors().map(|vector| (vector.len * size_of::<f32>()) as u64).sum()
    }
}

/// An opened model file.
#[derive(Debug)]
pub struct ModelFile {
    /// The mapped file.
    pub gguf: GgufFile,
    /// Its tensors by role.
    pub tensors: Tensors,
}

impl ModelFile {
    /// Opens a file and checks that it is a model the engine can describe.
    ///
    /// # Errors
    /// [`Error::Format`] for a damaged file, [`Error::Model`] for a sound file
    /// that is not supported.
    pub fn open(path: &Path) -> Result<(ModelSpec, ModelFile), Error> {
        let gguf = GgufFile::open(path)?;
        let (spec, tensors) = describe(&gguf)?;
        Ok((spec, ModelFile { gguf, tensors }))
    }

    /// Bytes of the weights in the file.
    pub fn mapped_bytes(&self) -> u64 {
        self.gguf.tensors().iter().filter_map(|tensor| tensor.n_bytes).sum()
    }
}

fn describe(gguf: &GgufFile) -> Result<(ModelSpec, Tensors), Error> {
    let meta = gguf.metadata();
    let architecture = architecture(meta)?;
    refuse_unsupported_parts(gguf)?;
    let table = Table { gguf };
    let shape = read_shape(meta, architecture, &table)?;
    let tensors = read_tensors(&table, &shape)?;
    let rope = read_rope(meta, architecture, &shape, &table)?;
    let eps_key = format!("{architecture}.attention.layer_norm_rms_epsilon");
    let norm_eps = meta.f32(&eps_key)?.ok_or(ModelError::MissingKey { key: eps_key })?;
    let head = match gguf.tensor(names::HEAD) {
        Some(_) => HeadKind::Own,
        None => HeadKind::Tied,
    };
    let name = meta.str("general.name")?.map(str::to_owned);
    Ok((ModelSpec { architecture, name, shape, norm_eps, rope, head }, tensors))
}

fn architecture(meta: &Metadata) -> Result<Architecture, Error> {
    let key = "general.architecture";
    let found = meta.str(key)?.ok_or_else(|| ModelError::MissingKey { key: key.to_owned() })?;
    let known = Architecture::ALL.into_iter().find(|family| family.name() == found);
    Ok(known.ok_or_else(|| ModelError::Architecture {
        found: found.to_owned(),
        supported: Architecture::ALL.map(Architecture::name).join(", "),
    })?)
}

fn refuse_unsupported_parts(gguf: &GgufFile) -> Result<(), ModelError> {
    for tensor in gguf.tensors() {
        let part = names::UNSUPPORTED_PARTS.iter().find(|(part, _)| tensor.name.contains(part));
        if let Some((_, feature)) = part {
            return Err(ModelError::Feature { feature: (*feature).to_owned() });
        }
    }
    Ok(())
}

/// Metadata of one architecture, as sizes.
struct Sizes<'a> {
    meta: &'a Metadata,
    architecture: Architecture,
}

impl Sizes<'_> {
    fn optional(&self, suffix: &str) -> Result<Option<usize>, Error> {
        let key = format!("{}.{suffix}", self.architecture);
        let value = self.meta.u64(&key)?;
        Ok(value.map(|value| usize::try_from(value).unwrap_or(usize::MAX)))
    }

    fn required(&self, suffix: &str) -> Result<usize, Error> {
        let key = || format!("{}.{suffix}", self.architecture);
        Ok(self.optional(suffix)?.ok_or_else(|| ModelError::MissingKey { key: key() })?)
    }
}

fn read_shape(
    meta: &Metadata,
    architecture: Architecture,
    table: &Table<'_>,
) -> Result<Shape, Error> {
    let sizes = Sizes { meta, architecture };
    let d_model = sizes.required("embedding_length")?;
    let n_heads = sizes.required("attention.head_count")?;
    let n_kv_heads = sizes.optional("attention.head_count_kv")?.unwrap_or(n_heads);
    let key_length = sizes.optional("attention.key_length")?;
    let head_dim = match key_length {
        Some(length) => length,
        None => d_model.checked_div(n_heads).unwrap_or(0),
    };
    let value_length = sizes.optional("attention.value_length")?;
    if value_length.is_some_and(|length| length != head_dim) {
        let feature = "values of another width than keys".to_owned();
        return Err(ModelError::Feature { feature }.into());
    }
    if sizes.optional("attention.sliding_window")?.is_some_and(|window| window > 0) {
        let feature = "sliding-window attention".to_owned();
        return Err(ModelError::Feature { feature }.into());
    }
    let shape = Shape {
        n_layers: sizes.required("block_count")?,
        d_model,
        d_ff: sizes.required("feed_forward_length")?,
        n_heads,
        n_kv_heads,
        head_dim,
        // Not every file states it; the table's rows are what counts.
        vocab: table.matrix_rows(names::EMBEDDING)?,
        context: sizes.required("context_length")?,
    };
    shape.validate()?;
    Ok(shape)
}

fn read_rope(
    meta: &Metadata,
    architecture: Architecture,
    shape: &Shape,
    table: &Table<'_>,
) -> Result<RopeSpec, Error> {
    let key = |suffix: &str| format!("{architecture}.rope.{suffix}");
    let dims = meta.u64(&key("dimension_count"))?.unwrap_or(shape.head_dim as u64);
    let bad = |key: String, value: String, reason| ModelError::Value { key, value, reason };
    if dims == 0 || dims % 2 == 1 || dims > shape.head_dim as u64 {
        let reason = "must be even and at most the head's width";
        return Err(bad(key("dimension_count"), dims.to_string(), reason).into());
    }
    let base = meta.f32(&key("freq_base"))?.unwrap_or(10_000.0);
    if !(base.is_finite() && base > 1.0) {
        return Err(bad(key("freq_base"), base.to_string(), "must be above 1").into());
    }
    let factors = match table.gguf.tensor(names::ROPE_FACTORS) {
        None => None,
        Some(_) => Some(table.vector(names::ROPE_FACTORS, dims as usize / 2)?.read(table.gguf)),
    };
    let style = match architecture {
        Architecture::Llama => RopeStyle::Interleaved,
        Architecture::Qwen2 => RopeStyle::Half,
    };
    let trained = meta.u64(&key("scaling.original_context_length"))?;
    let trained_context = trained.map_or(shape.context, |n| (n as usize).min(shape.context));
    let scaling = read_scaling(meta, &key)?;
    Ok(RopeSpec { style, base, dims: dims as usize, scaling, trained_context, factors })
}

fn read_scaling(meta: &Metadata, key: &dyn Fn(&str) -> String) -> Result<RopeScaling, Error> {
    let kind = meta.str(&key("scaling.type"))?.unwrap_or("none");
    let factor = meta.f32(&key("scaling.factor"))?.unwrap_or(1.0);
    let text = if kind == "none" { kind.to_owned() } else { format!("{kind}:{factor}") };
    let unknown = || ModelError::Feature { feature: format!("RoPE scaling `{text}`") };
    Ok(text.parse().map_err(|_| unknown())?)
}

/// Looks tensors up by name and checks their shapes.
struct Table<'a> {
    gguf: &'a GgufFile,
}

impl Table<'_> {
    fn get(&self, name: &str) -> Result<&TensorInfo, ModelError> {
        let missing = || ModelError::MissingTensor { name: name.to_owned() };
        self.gguf.tensor(name).ok_or_else(missing)
    }

    fn matrix_rows(&self, name: &str) -> Result<usize, ModelError> {
        let tensor = self.get(name)?;
        Ok(tensor.shape.get(1).map_or(1, |&rows| usize::try_from(rows).unwrap_or(usize::MAX)))
    }

    fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Matrix, ModelError> {
        let tensor = self.shaped(name, &[cols as u64, rows as u64])?;
        Ok(Matrix { tensor, rows, cols })
    }

    fn vector(&self, name: &str, len: usize) -> Result<Vector, ModelError> {
        let tensor = self.shaped(name, &[len as u64])?;
        let readable = [TensorType::F32, TensorType::F16, TensorType::BF16];
        if !readable.contains(&tensor.ty) {
            return Err(ModelError::TensorType {
                name: name.to_owned(),
                found: tensor.ty.to_string(),
                supported: "F32, F16 and BF16 for vectors".to_owned(),
            });
        }
        Ok(Vector { tensor, len })
    }

    fn shaped(&self, name: &str, expected: &[u64]) -> Result<TensorInfo, ModelError> {
        let tensor = self.get(name)?;
        // Trailing dimensions of 1 mean nothing.
        let mut found = tensor.shape.as_slice();
        while let [head @ .., 1] = found
            && head.len() >= expected.len()
        {
            found = head;
        }
        if found != expected {
            return Err(ModelError::TensorShape {
                name: name.to_owned(),
                found: tensor.shape.clone(),
                expected: expected.to_vec(),
            });
        }
        Ok(tensor.clone())
    }
}

impl Vector {
    /// The vector's numbers.
    pub fn read(&self, gguf: &GgufFile) -> Vec<f32> {
        let bytes = gguf.bytes(&self.tensor);
        let halves = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
        match self.tensor.ty {
            TensorType::F16 => halves.map(|bits| half::f16::from_bits(bits).to_f32()).collect(),
            TensorType::BF16 => halves.map(|bits| half::bf16::from_bits(bits).to_f32()).collect(),
            // `Table::vector` lets no other type through.
            _ => bytes
                .chunks_exact(4)
                .map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]))
                .collect(),
        }
    }
}

fn read_tensors(table: &Table<'_>, shape: &Shape) -> Result<Tensors, ModelError> {
    let embedding = table.matrix(names::EMBEDDING, shape.vocab, shape.d_model)?;
    let head = match table.gguf.tensor(names::HEAD) {
        Some(_) => table.matrix(names::HEAD, shape.vocab, shape.d_model)?,
        None => embedding.clone(),
    };
    Ok(Tensors {
        embedding,
        head,
        final_norm: table.vector(names::FINAL_NORM, shape.d_model)?,
        layers: (0..shape.n_layers)
            .map(|layer| read_layer(table, shape, layer))
            .collect::<Result<_, _>>()?,
    })
}

fn read_layer(table: &Table<'_>, shape: &Shape, layer: usize) -> Result<LayerTensors, ModelError> {
    let (d, q, kv) = (shape.d_model, shape.q_cols(), shape.kv_cols());
    let matrix = |kind: LayerTensor, rows, cols| table.matrix(&kind.name(layer), rows, cols);
    let vector = |kind: LayerTensor, len| table.vector(&kind.name(layer), len);
    // A model has all three biases or none.
    let has_bias = table.gguf.tensor(&LayerTensor::QueryBias.name(layer)).is_some();
    let bias = match has_bias {
        true => Some([
            vector(LayerTensor::QueryBias, q)?,
            vector(LayerTensor::KeyBias, kv)?,
            vector(LayerTensor::ValueBias, kv)?,
        ]),
        false => None,
    };
    Ok(LayerTensors {
        attn_norm: vector(LayerTensor::AttnNorm, d)?,
        q: matrix(LayerTensor::Query, q, d)?,
        k: matrix(LayerTensor::Key, kv, d)?,
        v: matrix(LayerTensor::Value, kv, d)?,
        bias,
        o: matrix(LayerTensor::Output, d, q)?,
        mlp_norm: vector(LayerTensor::MlpNorm, d)?,
        gate: matrix(LayerTensor::Gate, shape.d_ff, d)?,
        up: matrix(LayerTensor::Up, shape.d_ff, d)?,
        down: matrix(LayerTensor::Down, d, shape.d_ff)?,
    })
}
