//! The map of a file of ext2 or ext3, by direct and indirect blocks.
