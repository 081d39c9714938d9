//! The paths of a bench. Values only.

use super::work::{Point, Scenario};

/// One way to do the work of a scenario: `path` in the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    /// A careful program today.
    Kernel,
    /// A program that uses fallocate.
    Preallocated,
    /// A program that mistakes a larger size for allocated space.
    Sparse,
    /// A good log that uses the page cache.
    BufferedGroup,
    /// A log with one lock and a flush for each record, through the page cache.
    Mutex,
    /// One thread that gives such a log `iodepth` records at a time.
    BufferedBatch { iodepth: usize },
    /// `iodepth` tasks of one thread, which give their records to a thread with such a log.
    GatheredTasks { iodepth: usize },
    /// The historical serialisation, simulated in user space.
    Serialised,
    /// The library.
    Dioxide,
    /// dioxide's positional writes past the end, as programs do that track their offsets
    /// themselves.
    Positional,
    /// Appends over a recycled file, as a new log in its space.
    Recycled,
    /// Through queues, each with `iodepth` operations outstanding.
    Queue { iodepth: usize },
    /// `iodepth` tasks of one thread, each with a future of the library.
    Tasks { iodepth: usize },
    /// Through `dioxide-log`.
    WriteAhead,
    /// One thread that appends batches of `iodepth` records to `dioxide-log`.
    WriteAheadBatch { iodepth: usize },
    /// `iodepth` tasks of one thread, each with a future of `dioxide-log`.
    WriteAheadTasks { iodepth: usize },
    /// Through a `LogSet` of `dioxide-log`: many logs, each with a thread.
    WriteAheadSet,
    /// One write and its flush after the other.
    OneThread,
    /// Through the kernel's io_uring, with `iodepth` writes outstanding.
    Uring { iodepth: usize },
    /// One flush of the file system for `iodepth` writes.
    Syncfs { iodepth: usize },
    /// Through the page cache, without a flush.
    Unsynced,
    /// Through the page cache, with a flush for each write.
    Buffered,
}

impl Route {
    /// Whether the library does the work.
    pub fn is_dioxide(self) -> bool {
        let has_queue = matches!(self, Self::Queue { .. } | Self::Tasks { .. });
        let is_file = matches!(self, Self::Dioxide | Self::Positional | Self::Recycled);
        has_queue || is_file || self.is_write_ahead()
    }

    /// Whether `dioxide-log` does the work.
    pub fn is_write_ahead(self) -> bool {
        let has_depth = matches!(self, Self::WriteAheadBatch { .. } | Self::WriteAheadTasks { .. });
        has_depth || matches!(self, Self::WriteAhead | Self::WriteAheadSet)
    }

    /// The records of each atomic batch of `dioxide-log`.
    pub fn batch(self) -> usize {
        match self {
            Self::WriteAheadBatch { iodepth } => iodepth,
            _ => 1,
        }
    }

    /// Whether it opens files for direct I/O. `point` is where it is measured.
    pub fn is_direct(self, point: Point) -> bool {
        let is_cached = match self {
            Self::Kernel => matches!(point.scenario, Scenario::Copy | Scenario::Log),
            Self::Mutex | Self::Buffered | Self::Unsynced | Self::BufferedGroup => true,
            Self::BufferedBatch { .. } | Self::GatheredTasks { .. } => true,
            _ => false,
        };
        !is_cached
    }

    /// The number of outstanding operations per thread.
    pub fn iodepth(self) -> usize {
        match self {
            Self::Queue { iodepth } | Self::Uring { iodepth } | Self::Syncfs { iodepth } => iodepth,
            Self::BufferedBatch { iodepth }
            | Self::GatheredTasks { iodepth }
            | Self::WriteAheadBatch { iodepth }
            | Self::WriteAheadTasks { iodepth }
            | Self::Tasks { iodepth } => iodepth,
            _ => 1,
        }
    }

    /// Whether both are the same path, with any numbers of outstanding operations.
    pub fn is_path_of(self, other: Self) -> bool {
        self.name() == other.name()
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Preallocated => "preallocated",
            Self::Sparse => "sparse",
            Self::BufferedGroup => "buffered-group",
            Self::Mutex => "mutex",
            Self::BufferedBatch { .. } => "buffered-batch",
            Self::GatheredTasks { .. } => "gathered-tasks",
            Self::Tasks { .. } => "dioxide-tasks",
            Self::Serialised => "serialised",
            Self::Dioxide => "dioxide",
            Self::Positional => "positional",
            Self::Recycled => "recycled",
            Self::Queue { .. } => "dioxide-queue",
            Self::WriteAhead => "dioxide-log",
            Self::WriteAheadBatch { .. } => "dioxide-log-batch",
            Self::WriteAheadTasks { .. } => "dioxide-log-tasks",
            Self::WriteAheadSet => "dioxide-log-set",
            Self::OneThread => "one-thread",
            Self::Uring { .. } => "kernel-uring",
            Self::Syncfs { .. } => "syncfs",
            Self::Unsynced => "unsynced",
            Self::Buffered => "buffered",
        }
    }
}

/// Whether the library does the work on the path of this name.
pub fn is_dioxide(path: &str) -> bool {
    let queues = [Route::Queue { iodepth: 1 }, Route::Tasks { iodepth: 1 }];
    let files = [Route::Dioxide, Route::Positional, Route::Recycled];
    let logs = [
        Route::WriteAhead,
        Route::WriteAheadBatch { iodepth: 1 },
        Route::WriteAheadTasks { iodepth: 1 },
        Route::WriteAheadSet,
    ];
    let mut ours = files.into_iter().chain(queues).chain(logs);
    ours.any(|route| route.name() == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_ours_by_their_names() {
        use Route::*;
        let all = [
            Kernel,
            Preallocated,
            BufferedGroup,
            Mutex,
            BufferedBatch { iodepth: 9 },
            GatheredTasks { iodepth: 9 },
            Tasks { iodepth: 9 },
            Serialised,
            Dioxide,
            Positional,
            Recycled,
            Queue { iodepth: 9 },
            WriteAhead,
            WriteAheadBatch { iodepth: 9 },
            WriteAheadTasks { iodepth: 9 },
            WriteAheadSet,
            OneThread,
            Uring { iodepth: 9 },
            Syncfs { iodepth: 9 },
            Unsynced,
            Buffered,
        ];
        for route in all {
            assert_eq!(is_dioxide(route.name()), route.is_dioxide(), "{}", route.name());
        }
    }
}
