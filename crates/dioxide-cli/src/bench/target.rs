//! What one operation of a bench is, and where it goes. Values only.

/// One operation, drawn by a scenario for whichever path carries it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub direction: Direction,
    /// For an append, where the kernel's paths write; dioxide is only allowed one more, and says itself where it stands.
    pub offset: u64,
}

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Read,
    Write,
}

impl Target {
    pub fn write(offset: u64) -> Self {
        Self { direction: Direction::Write, offset }
    }
}
