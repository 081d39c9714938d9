//! A handle of an open file: on the writing engine that several handles share, or a reader.

use super::Engine;
use super::process::Process;
use super::reader::Reader;
use super::registry::Key;
use crate::error::{Error, ErrorKind, Operation};
use std::sync::Arc;

/// A handle of an open file.
#[derive(Debug)]
pub(crate) enum FileHandle {
    /// A handle that writes.
    Shared { engine: Arc<Engine>, key: Key, process: &'static Process, durable: bool },
    /// A read-only handle.
    Reader(Reader),
}

impl FileHandle {
    /// Another handle with the same file and rights, for operations that outlive this handle.
    pub fn another(&self) -> Self {
        match self {
            Self::Shared { engine, key, process, durable } => {
                Self::Shared { engine: engine.clone(), key: *key, process, durable: *durable }
            }
            Self::Reader(reader) => Self::Reader(reader.another()),
        }
    }

    /// An error of this file.
    pub fn error(&self, operation: Operation, offset: Option<u64>, kind: ErrorKind) -> Error {
        match self {
            Self::Shared { engine, .. } => engine.error(operation, offset, kind),
            Self::Reader(reader) => Error::new(operation, reader.path(), offset, kind),
        }
    }
}
