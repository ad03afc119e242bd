//! Models as data: one forward pass, described by values.
//!
//! A family differs from another in the enums of [`ModelSpec`] and in the names
//! of its tensors, never in a second forward.

mod error;
mod file;
mod gguf;
mod hf;
mod names;
mod rope;
mod shape;
mod spec;
mod tensors;

pub use error::ModelError;
pub use file::{Beside, ModelFile};
pub use rope::{
    BadRopeScaling, RopeFactors, RopeFrequencies, RopeScaling, RopeSpec, RopeStyle, Yarn,
};
pub use shape::Shape;
pub use spec::{
    Activation, Architecture, Arithmetic, HeadKind, ModelSpec, NormPlacement, QkNorm, Rotations,
};
pub use tensors::{HeadRows, LayerTensors, Matrix, Tensors, Vector};
