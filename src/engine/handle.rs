//! A handle of an open file: on the writing engine that several handles share, or a reader.

use super::Engine;
use super::process::Process;
use super::reader::ReadHandle;
use super::registry::Key;
use crate::error::{Error, ErrorKind, Operation};
use std::sync::Arc;

/// A handle of an open file.
#[derive(Debug)]
pub(crate) enum FileHandle {
    /// A handle that writes.
    Writer { engine: Arc<Engine>, key: Key, process: &'static Process, durable: bool },
    /// A read-only handle.
    Reader(Arc<ReadHandle>),
}

impl FileHandle {
    /// Another handle with the same file and rights, for operations that outlive this handle.
    pub fn another(&self) -> Self {
        match self {
            Self::Writer { engine, key, process, durable } => {
                Self::Writer { engine: engine.clone(), key: *key, process, durable: *durable }
            }
            Self::Reader(reader) => Self::Reader(reader.clone()),
        }
    }

    /// Prepares the file for a write, as [`Engine::prepare_write`].
    pub fn prepare_write(&self, len: u64, offset: u64) {
        if let Self::Writer { engine, .. } = self {
            engine.prepare_write(len, offset);
        }
    }

    /// Whether that would wait, as [`Engine::must_prepare`].
    pub fn must_prepare(&self, len: u64, offset: u64) -> bool {
        matches!(self, Self::Writer { engine, .. } if engine.must_prepare(len, offset))
    }

    /// An error of this file.
    pub fn error(&self, operation: Operation, offset: Option<u64>, kind: ErrorKind) -> Error {
        match self {
            Self::Writer { engine, .. } => engine.error(operation, offset, kind),
            Self::Reader(reader) => Error::new(operation, reader.path(), offset, kind),
        }
    }
}
