//! Models as data: one forward pass, described by values.
//!
//! A family differs from another in the enums of [`ModelSpec`] and in the names
//! of its tensors, never in a second forward.

mod error;
mod load;
mod names;
mod rope;
mod shape;
mod spec;

pub use error::ModelError;
pub use load::{LayerTensors, Matrix, ModelFile, Tensors, Vector};
pub use rope::{BadRopeScaling, RopeFrequencies, RopeScaling, RopeSpec, RopeStyle};
pub use shape::Shape;
pub use spec::{Architecture, HeadKind, ModelSpec};
