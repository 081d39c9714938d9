//! The counters of a file.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a file, over all its handles, since its first writing handle was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The live counters behind [`Stats`].
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub $name: AtomicU64,)*
        }

        impl Counters {
            pub fn snapshot(&self) -> Stats {
                Stats { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Appends acknowledged.
    appends,
    /// Bytes of these appends.
    append_bytes,
    /// Write requests for appends, and for positional writes that are durable, extend the file or
    /// write a part of a block. Others are not counted. A striped volume also counts each further
    /// part of any write. For a file inside an ext2 or ext3 volume: all requests that wrote data to
    /// the volume. One write there may be several.
    requests,
    /// Bytes of these requests.
    request_bytes,
    /// Requests that carried RWF_DSYNC.
    dsync_requests,
    /// Operations that shared their request with another operation.
    merged,
    /// Bytes copied to pack unaligned data into blocks, with the rest of these blocks.
    copied_bytes,
    /// Requests that rewrote the partial last block.
    tail_rewrites,
    /// Flushes, without those of RWF_DSYNC.
    flushes,
    /// Flushes that this file needed, and that another file of the file system made for it, or
    /// another thread.
    flushes_shared,
    /// Completed growth steps.
    growths,
    /// Bytes of these steps.
    grown_bytes,
    /// Operations that waited because the space ahead was used up.
    growth_waits,
    /// Requests that wrote metadata of an ext2 or ext3 volume, for a file inside it.
    metadata_requests,
    /// Refused merges with the waiting request: the two are not adjacent, so each is its own
    /// request.
    refused_gap,
    /// Refused merges: the request would exceed the device's largest, or the operation is long
    /// enough to be its own request.
    refused_bytes,
    /// Refused merges: the request would have more segments than one call takes.
    refused_segments,
    /// Refused merges: the operation lies on another member of a striped volume.
    refused_member,
    /// Delayed writes: the write shares bytes, or a block, with another one that was in flight or
    /// waited.
    refused_order,
}

/// Adds to a counter.
pub fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Relaxed);
}
