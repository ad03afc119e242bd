//! The tensors of a model by role, checked against its shape.

use super::names::{self, Naming, Part};
use super::{Architecture, ModelError, ModelSpec, NormPlacement, QkNorm, Shape};
use std::cell::RefCell;
use std::collections::HashSet;
use tidekv_format::{TensorInfo, TensorStore, TensorType};

/// Order in which the rows of a head's projection are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadRows {
    /// As stored.
    AsStored,
    /// Rows i and i + D/2 side by side: projections stored for a rotation of
    /// halves in a family whose heads rotate by neighbours.
    NeighbouringHalves {
        /// D.
        head_dim: usize,
    },
}

impl HeadRows {
    /// Where row `n` is stored.
    fn stored(self, n: usize) -> usize {
        match self {
            HeadRows::AsStored => n,
            HeadRows::NeighbouringHalves { head_dim } => {
                let (head, row) = (n / head_dim, n % head_dim);
                head * head_dim + row % 2 * (head_dim / 2) + row / 2
            }
        }
    }
}

/// A matrix, `[rows, cols]` row-major: `rows` outputs of `cols` inputs each.
#[derive(Debug, Clone)]
pub struct Matrix {
    /// Entry of the file's tensor table.
    pub tensor: TensorInfo,
    /// Row of the tensor that is row 0 here: fused matrices hold several.
    pub first_row: usize,
    /// Order of the rows of each head.
    pub head_rows: HeadRows,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
}

/// A vector, stored as F32 or F16 or BF16.
#[derive(Debug, Clone)]
pub struct Vector {
    /// Entry of the file's tensor table.
    pub tensor: TensorInfo,
    /// Element of the tensor that is element 0 here.
    pub first: usize,
    /// Length.
    pub len: usize,
    /// Added to every element: 1 for norms that are stored as the difference
    /// from 1.
    pub offset: f32,
    /// Order of the elements of each head.
    pub head_rows: HeadRows,
}

/// The tensors of one layer.
#[derive(Debug, Clone)]
pub struct LayerTensors {
    /// Norm of attention's input, `[d_model]`.
    pub attn_norm: Option<Vector>,
    /// Query projection, `[Hq * D, d_model]`.
    pub q: Matrix,
    /// Key projection, `[Hkv * D, d_model]`.
    pub k: Matrix,
    /// Value projection, `[Hkv * D, d_model]`.
    pub v: Matrix,
    /// Biases of the three, where the model has them.
    pub bias: Option<[Vector; 3]>,
    /// Norms of queries and keys, of the lengths that [`QkNorm`] says.
    pub qk_norm: Option<[Vector; 2]>,
    /// Output projection, `[d_model, Hq * D]`.
    pub o: Matrix,
    /// Norm of attention's output, `[d_model]`.
    pub post_attn_norm: Option<Vector>,
    /// Norm of the MLP's input, `[d_model]`.
    pub mlp_norm: Option<Vector>,
    /// Gate projection, `[d_ff, d_model]`.
    pub gate: Matrix,
    /// Up projection, `[d_ff, d_model]`.
    pub up: Matrix,
    /// Down projection, `[d_model, d_ff]`.
    pub down: Matrix,
    /// Norm of the MLP's output, `[d_model]`.
    pub post_mlp_norm: Option<Vector>,
}

impl LayerTensors {
    /// Every matrix of the layer.
    pub fn matrices(&self) -> [&Matrix; 7] {
        let LayerTensors { q, k, v, o, gate, up, down, .. } = self;
        [q, k, v, o, gate, up, down]
    }

    /// Every vector of the layer, in a fixed order.
    pub fn vectors(&self) -> impl Iterator<Item = &Vector> {
        let norms = [&self.attn_norm, &self.post_attn_norm, &self.mlp_norm, &self.post_mlp_norm];
        let norms = norms.into_iter().flatten();
        norms.chain(self.bias.iter().flatten()).chain(self.qk_norm.iter().flatten())
    }
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
        let layers = self.layers.iter().flat_map(LayerTensors::vectors);
        std::iter::once(&self.final_norm).chain(layers)
    }

    /// Bytes of all vectors as f32, which is how backends hold them.
    pub fn vector_bytes(&self) -> u64 {
        self.vectors().map(|vector| (vector.len * size_of::<f32>()) as u64).sum()
    }
}

impl Vector {
    /// The vector's numbers.
    pub fn read(&self, store: &TensorStore) -> Vec<f32> {
        let bytes = store.bytes(&self.tensor);
        let number = |index: usize| match self.tensor.ty {
            TensorType::F16 => half::f16::from_bits(u16::from_le_bytes(at(bytes, index))).to_f32(),
            TensorType::BF16 => {
                half::bf16::from_bits(u16::from_le_bytes(at(bytes, index))).to_f32()
            }
            // `Table::vector` lets no other type through.
            _ => f32::from_le_bytes(at(bytes, index)),
        };
        let stored = (0..self.len).map(|n| self.first + self.head_rows.stored(n));
        stored.map(|index| number(index) + self.offset).collect()
    }
}

/// The bytes of number `index`; zeros beyond the end, which checked shapes never
/// reach.
fn at<const B: usize>(bytes: &[u8], index: usize) -> [u8; B] {
    bytes.as_chunks().0.get(index).copied().unwrap_or([0; B])
}

/// Looks tensors up by name, checks their shapes, and knows which were read.
pub(super) struct Table<'a> {
    store: &'a TensorStore,
    naming: Naming,
    read: RefCell<HashSet<String>>,
}

impl<'a> Table<'a> {
    pub(super) fn new(store: &'a TensorStore, naming: Naming) -> Self {
        Table { store, naming, read: RefCell::default() }
    }

    pub(super) fn naming(&self) -> &Naming {
        &self.naming
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.store.tensor(name).is_some()
    }

    pub(super) fn rows(&self, name: &str) -> Result<usize, ModelError> {
        let tensor = self.get(name)?;
        Ok(tensor.shape.get(1).map_or(1, |&rows| usize::try_from(rows).unwrap_or(usize::MAX)))
    }

    /// Length of a matrix's rows.
    pub(super) fn cols(&self, name: &str) -> Result<usize, ModelError> {
        let cols = self.get(name)?.shape.first().copied().unwrap_or(0);
        Ok(usize::try_from(cols).unwrap_or(usize::MAX))
    }

    /// The numbers of a vector of `len` elements.
    pub(super) fn numbers(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        Ok(self.vector(name, len)?.read(self.store))
    }

    /// Refuses a model that has tensors which nothing has asked for: a part that
    /// is not computed would make every token wrong, silently.
    pub(super) fn refuse_unread(&self, architecture: Architecture) -> Result<(), ModelError> {
        let read = self.read.borrow();
        let unread = |tensor: &&TensorInfo| {
            !read.contains(&tensor.name) && !self.naming.may_be_unread(&tensor.name)
        };
        match self.store.tensors().iter().find(unread) {
            None => Ok(()),
            Some(tensor) => Err(ModelError::UnreadTensor {
                name: tensor.name.clone(),
                feature: names::feature_of(&tensor.name),
                architecture,
            }),
        }
    }

    fn get(&self, name: &str) -> Result<&TensorInfo, ModelError> {
        let missing = || ModelError::MissingTensor { name: name.to_owned() };
        let tensor = self.store.tensor(name).ok_or_else(missing)?;
        self.read.borrow_mut().insert(name.to_owned());
        Ok(tensor)
    }

    fn matrix(&self, name: &str, rows: usize, cols: usize) -> Result<Matrix, ModelError> {
        let tensor = self.shaped(name, &[cols as u64, rows as u64])?;
        Ok(Matrix { tensor, first_row: 0, head_rows: HeadRows::AsStored, rows, cols })
    }

    /// The matrices that a tensor holds one below the other, of `rows` rows each.
    fn fused<const P: usize>(
        &self,
        name: &str,
        rows: [usize; P],
        cols: usize,
    ) -> Result<[Matrix; P], ModelError> {
        let whole = self.matrix(name, rows.iter().sum(), cols)?;
        let mut first_row = 0;
        Ok(rows.map(|rows| {
            let part = Matrix { first_row, rows, ..whole.clone() };
            first_row += rows;
            part
        }))
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
        Ok(Vector { tensor, first: 0, len, offset: 0.0, head_rows: HeadRows::AsStored })
    }

    /// The weights of a norm, which Gemma's Hugging Face files store less 1.
    fn norm(
        &self,
        name: &str,
        len: usize,
        architecture: Architecture,
    ) -> Result<Vector, ModelError> {
        let offset = if self.naming.stores_norms_less_one(architecture) { 1.0 } else { 0.0 };
        Ok(Vector { offset, ..self.vector(name, len)? })
    }

    fn fused_vector<const P: usize>(
        &self,
        name: &str,
        lens: [usize; P],
    ) -> Result<[Vector; P], ModelError> {
        let whole = self.vector(name, lens.iter().sum())?;
        let mut first = 0;
        Ok(lens.map(|len| {
            let part = Vector { first, len, ..whole.clone() };
            first += len;
            part
        }))
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

    /// Reads the tensors that a model of this description has, and refuses any
    /// other.
    pub(super) fn tensors(&self, spec: &ModelSpec) -> Result<Tensors, ModelError> {
        let shape = &spec.shape;
        let names = &self.naming;
        let embedding = self.matrix(&names.embedding(), shape.vocab, shape.d_model)?;
        let head = match self.has(&names.head()) {
            true => self.matrix(&names.head(), shape.vocab, shape.d_model)?,
            false => embedding.clone(),
        };
        let layers =
            (0..shape.n_layers).map(|layer| LayerTable { table: self, spec, layer }.read());
        let tensors = Tensors {
            embedding,
            head,
            final_norm: self.norm(&names.final_norm(), shape.d_model, spec.architecture)?,
            layers: layers.collect::<Result<_, _>>()?,
        };
        self.refuse_unread(spec.architecture)?;
        Ok(tensors)
    }
}

/// One layer's part of a table.
struct LayerTable<'a> {
    table: &'a Table<'a>,
    spec: &'a ModelSpec,
    layer: usize,
}

impl LayerTable<'_> {
    fn read(&self) -> Result<LayerTensors, ModelError> {
        let Shape { d_model, d_ff, .. } = self.spec.shape;
        let q_cols = self.spec.shape.q_cols();
        let norms = self.spec.arithmetic.norms;
        let (before, after) = (norms != NormPlacement::After, norms != NormPlacement::Before);
        let [q, k, v] = self.qkv()?;
        let [gate, up] = self.gate_up()?;
        Ok(LayerTensors {
            attn_norm: self.norm_if(before, Part::AttnNorm)?,
            q,
            k,
            v,
            bias: self.bias()?,
            qk_norm: self.qk_norm()?,
            o: self.matrix(Part::Output, d_model, q_cols)?,
            post_attn_norm: self.norm_if(after, Part::PostAttnNorm)?,
            mlp_norm: self.norm_if(before, Part::MlpNorm)?,
            gate,
            up,
            down: self.matrix(Part::Down, d_model, d_ff)?,
            post_mlp_norm: self.norm_if(after, Part::PostMlpNorm)?,
        })
    }

    fn qkv(&self) -> Result<[Matrix; 3], ModelError> {
        let d_model = self.spec.shape.d_model;
        // Nobody is known to store both fused and in another order of rows.
        if self.has(Part::FusedQkv) && self.head_rows() == HeadRows::AsStored {
            return self.table.fused(&self.name(Part::FusedQkv), self.qkv_rows(), d_model);
        }
        let [q, kv, _] = self.qkv_rows();
        let head_rows = self.head_rows();
        Ok([
            Matrix { head_rows, ..self.matrix(Part::Query, q, d_model)? },
            Matrix { head_rows, ..self.matrix(Part::Key, kv, d_model)? },
            self.matrix(Part::Value, kv, d_model)?,
        ])
    }

    /// How queries and keys are brought into the order in which this family's
    /// heads rotate.
    fn head_rows(&self) -> HeadRows {
        match self.table.naming().stores_halves(self.spec.architecture) {
            true => HeadRows::NeighbouringHalves { head_dim: self.spec.shape.head_dim },
            false => HeadRows::AsStored,
        }
    }

    /// A model has all three biases or none.
    fn bias(&self) -> Result<Option<[Vector; 3]>, ModelError> {
        if self.has(Part::FusedQkvBias) && self.head_rows() == HeadRows::AsStored {
            let bias = self.table.fused_vector(&self.name(Part::FusedQkvBias), self.qkv_rows())?;
            return Ok(Some(bias));
        }
        let all = [Part::QueryBias, Part::KeyBias, Part::ValueBias];
        match all.into_iter().find(|&part| self.has(part)) {
            None => return Ok(None),
            Some(part) if !all.into_iter().all(|part| self.has(part)) => {
                return Err(ModelError::UnreadTensor {
                    name: self.name(part),
                    feature: Some("a bias of some, not all, of query, key and value"),
                    architecture: self.spec.architecture,
                });
            }
            Some(_) => {}
        }
        let [q, kv, _] = self.qkv_rows();
        let head_rows = self.head_rows();
        Ok(Some([
            Vector { head_rows, ..self.vector(Part::QueryBias, q)? },
            Vector { head_rows, ..self.vector(Part::KeyBias, kv)? },
            self.vector(Part::ValueBias, kv)?,
        ]))
    }

    fn qk_norm(&self) -> Result<Option<[Vector; 2]>, ModelError> {
        let shape = &self.spec.shape;
        let (q, k) = match self.spec.arithmetic.qk_norm {
            None => return Ok(None),
            Some(QkNorm::PerHead) => (shape.head_dim, shape.head_dim),
            Some(QkNorm::AllHeads) => (shape.q_cols(), shape.kv_cols()),
        };
        Ok(Some([self.norm(Part::QueryNorm, q)?, self.norm(Part::KeyNorm, k)?]))
    }

    fn gate_up(&self) -> Result<[Matrix; 2], ModelError> {
        let Shape { d_model, d_ff, .. } = self.spec.shape;
        if !self.has(Part::Gate) {
            return self.table.fused(&self.name(Part::FusedGateUp), [d_ff, d_ff], d_model);
        }
        Ok([self.matrix(Part::Gate, d_ff, d_model)?, self.matrix(Part::Up, d_ff, d_model)?])
    }

    fn qkv_rows(&self) -> [usize; 3] {
        let (q, kv) = (self.spec.shape.q_cols(), self.spec.shape.kv_cols());
        [q, kv, kv]
    }

    fn norm_if(&self, present: bool, part: Part) -> Result<Option<Vector>, ModelError> {
        present.then(|| self.norm(part, self.spec.shape.d_model)).transpose()
    }

    fn norm(&self, part: Part, len: usize) -> Result<Vector, ModelError> {
        self.table.norm(&self.name(part), len, self.spec.architecture)
    }

    fn name(&self, part: Part) -> String {
        self.table.naming().layer_part(part, self.layer)
    }

    fn has(&self, part: Part) -> bool {
        self.table.has(&self.name(part))
    }

    fn matrix(&self, part: Part, rows: usize, cols: usize) -> Result<Matrix, ModelError> {
        self.table.matrix(&self.name(part), rows, cols)
    }

    fn vector(&self, part: Part, len: usize) -> Result<Vector, ModelError> {
        self.table.vector(&self.name(part), len)
    }
}
