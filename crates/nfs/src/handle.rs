//! By what servers know files.

use std::sync::Arc;

use crate::wire::numbers as n;
use crate::wire::xdr::{Garbage, Reader, Writer};

/// By what a server knows a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Handle(Arc<[u8]>);

impl Handle {
    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self, Garbage> {
        from.opaque(n::HANDLE_BYTES_MAX).map(|bytes| Self(bytes.into()))
    }

    /// Begins arguments with it.
    pub(crate) fn arguments(&self) -> Writer {
        let mut out = Writer::default();
        out.opaque(&self.0);
        out
    }

    pub(crate) fn add_to(&self, out: &mut Writer) {
        out.opaque(&self.0);
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    #[cfg(test)]
    pub(crate) fn forged(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}
