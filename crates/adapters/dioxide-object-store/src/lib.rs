//! A local [`ObjectStore`] whose puts are durable, and bypass the page cache if they are large.
//!
//! It is a [`LocalFileSystem`] with fsync: the same files, names and ETags. Reads, listings, copies
//! and deletions are those of `LocalFileSystem`, and so are puts below [`DIRECT_BYTES_MIN`]. A
//! larger put, and each upload in parts, writes a file `NAME#N` by direct I/O. It is stable before
//! it gets its name. The flushes of concurrent puts are one flush where the file system allows that
//! (see [`dioxide::sync_all`]). A crash may leave files `NAME#N`; listings ignore them.

mod staged;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions,
    Result, UploadPart,
};
use staged::{Staged, aborted};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Smaller puts gain nothing by direct I/O, and cost more calls.
pub const DIRECT_BYTES_MIN: usize = 1 << 20;

/// A local object store with durable puts. A deletion is not: a power cut may bring the object
/// back. Clones share nothing but the directory.
#[derive(Clone, Debug)]
pub struct DioxideStore {
    local: LocalFileSystem,
}

impl DioxideStore {
    /// The objects are the files below `directory`, which must exist.
    ///
    /// # Errors
    ///
    /// That of the kernel, as `object_store` reports it.
    pub fn new(directory: impl AsRef<std::path::Path>) -> Result<Self> {
        Ok(Self { local: LocalFileSystem::new_with_prefix(directory)?.with_fsync(true) })
    }

    fn refuse(&self, operation: &str) -> Error {
        Error::NotImplemented { operation: operation.into(), implementer: self.to_string() }
    }

    fn refuse_attributes(&self, attributes: &Attributes) -> Result<()> {
        if attributes.is_empty() { Ok(()) } else { Err(self.refuse("a put with attributes")) }
    }
}

impl fmt::Display for DioxideStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DioxideStore({})", self.local)
    }
}

/// Runs blocking work in tokio's threads for it, or in this thread outside of tokio.
async fn blocking<R: Send + 'static>(
    work: impl FnOnce() -> Result<R> + Send + 'static,
) -> Result<R> {
    match Handle::try_current() {
        Ok(runtime) => runtime.spawn_blocking(work).await?,
        Err(_) => work(),
    }
}

#[async_trait]
impl ObjectStore for DioxideStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        if payload.content_length() < DIRECT_BYTES_MIN {
            return self.local.put_opts(location, payload, options).await;
        }
        self.refuse_attributes(&options.attributes)?;
        let replaces = match options.mode {
            PutMode::Overwrite => true,
            PutMode::Create => false,
            PutMode::Update(_) => return Err(self.refuse("a conditional update")),
        };
        let target = self.local.path_to_filesystem(location)?;
        blocking(move || Staged::new(target)?.filled(&payload)?.publish(replaces)).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.refuse_attributes(&options.attributes)?;
        let target = self.local.path_to_filesystem(location)?;
        let staged = blocking(move || Staged::new(target)).await?;
        Ok(Box::new(Upload { staged: Some(Arc::new(staged)), len: 0 }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.local.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.local.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.local.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.local.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.local.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.local.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.local.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.local.rename_opts(from, to, options).await
    }
}

/// An upload in parts, which may be written at the same time.
#[derive(Debug)]
struct Upload {
    /// None after its end.
    staged: Option<Arc<Staged>>,
    /// The bytes of the parts so far.
    len: u64,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (staged, offset) = (self.staged.clone(), self.len);
        self.len += data.content_length() as u64;
        blocking(move || staged.ok_or_else(aborted)?.write_at(&Bytes::from(data), offset)).boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let staged = self.staged.take().ok_or_else(aborted)?;
        // A part that is being written would not be stable.
        let staged = Arc::into_inner(staged).ok_or_else(aborted)?;
        blocking(move || {
            staged.sync()?;
            staged.publish(true)
        })
        .await
    }

    async fn abort(&mut self) -> Result<()> {
        let staged = self.staged.take().ok_or_else(aborted)?;
        blocking(move || {
            drop(staged);
            Ok(())
        })
        .await
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let staged = self.staged.take();
        // It removes a file.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn_blocking(move || drop(staged));
        }
    }
}
