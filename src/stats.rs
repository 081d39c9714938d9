//! What a file has done so far, counted where it happens.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What was done on a file, through all its handles, since its first writing handle was
        /// opened.
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
    /// Bytes of these.
    append_bytes,
    /// Write requests sent to the kernel for appends, and for positional writes that are durable or
    /// extend the file. Others go straight out and are not counted. Of a file inside of a volume,
    /// all requests that wrote data to the volume, since a write there may be several.
    requests,
    /// Bytes of these.
    request_bytes,
    /// Requests that carried RWF_DSYNC.
    dsync_requests,
    /// Operations that shared their request with another one.
    merged,
    /// Bytes that were copied to be packed into blocks, with the zeros behind them: records that
    /// are not aligned.
    copied_bytes,
    /// Requests that wrote the last block again, since it was not full.
    tail_rewrites,
    /// Flushes sent, those behind RWF_DSYNC not included.
    flushes,
    /// Growth steps done.
    growths,
    /// Bytes of these.
    grown_bytes,
    /// Times that an operation had to wait because the space ahead was used up.
    growth_waits,
    /// Requests that wrote what a volume itself consists of, for a file inside of it.
    metadata_requests,
    /// Times that an operation did not join the request that waited, because the two are not
    /// adjacent: each is a request of its own.
    refused_gap,
    /// Times that one did not because the request would be longer than the device's largest, or the
    /// operation is long enough to be one by itself.
    refused_bytes,
    /// Times that one did not because the request would have more segments than one call takes.
    refused_segments,
    /// Times that one did not because it lies on another member of a striped volume.
    refused_member,
    /// Times that a write had to wait because it shares bytes, or a block, with another one that
    /// was in flight or waited.
    refused_order,
}

/// Adds to a counter.
pub fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Relaxed);
}
