//! Storage types of the bridge and of K/V.

use std::fmt;

/// How a stored number is represented. Arithmetic is f32 in every case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Element {
    /// bfloat16.
    #[default]
    Bf16,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
}

impl Element {
    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self {
            Element::Bf16 | Element::F16 => 2,
            Element::F32 => 4,
        }
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Element::Bf16 => "bf16",
            Element::F16 => "f16",
            Element::F32 => "f32",
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Text that is not a storage type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a storage type; use bf16, f16 or f32")]
pub struct UnknownElement(pub String);

impl std::str::FromStr for Element {
    type Err = UnknownElement;

    fn from_str(text: &str) -> Result<Self, UnknownElement> {
        [Element::Bf16, Element::F16, Element::F32]
            .into_iter()
            .find(|element| element.name() == text)
            .ok_or_else(|| UnknownElement(text.to_owned()))
    }
}
