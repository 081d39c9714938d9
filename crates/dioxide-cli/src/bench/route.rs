//! The paths of a bench. Values only.

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
    /// One write and its flush after the other.
    OneThread,
    /// Through the kernel's io_uring, with `iodepth` writes outstanding.
    Uring { iodepth: usize },
    /// One flush of the file system for `iodepth` writes.
    Syncfs { iodepth: usize },
}

impl Route {
    /// Whether the library does the work.
    pub fn is_dioxide(self) -> bool {
        matches!(self, Self::Dioxide | Self::Positional | Self::Recycled | Self::Queue { .. })
    }

    /// The number of outstanding operations per thread.
    pub fn iodepth(self) -> usize {
        match self {
            Self::Queue { iodepth } | Self::Uring { iodepth } | Self::Syncfs { iodepth } => iodepth,
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
            Self::Serialised => "serialised",
            Self::Dioxide => "dioxide",
            Self::Positional => "positional",
            Self::Recycled => "recycled",
            Self::Queue { .. } => "dioxide-queue",
            Self::OneThread => "one-thread",
            Self::Uring { .. } => "kernel-uring",
            Self::Syncfs { .. } => "syncfs",
        }
    }
}

/// Whether the library does the work on the path of this name.
pub fn is_dioxide(path: &str) -> bool {
    let ours = [Route::Dioxide, Route::Positional, Route::Recycled, Route::Queue { iodepth: 1 }];
    ours.iter().any(|route| route.name() == path)
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
            Serialised,
            Dioxide,
            Positional,
            Recycled,
            Queue { iodepth: 9 },
            OneThread,
            Uring { iodepth: 9 },
            Syncfs { iodepth: 9 },
        ];
        for route in all {
            assert_eq!(is_dioxide(route.name()), route.is_dioxide(), "{}", route.name());
        }
    }
}
