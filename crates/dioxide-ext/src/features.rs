//! The features of ext2 and ext3, and the names of all others. Values only.

/// The three feature words of a superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Features that a program may ignore.
    pub compat: u32,
    /// Features that a program must know.
    pub incompat: u32,
    /// Features that a program must know to write.
    pub ro_compat: u32,
}

pub const FILETYPE: u32 = 0x2;
pub const NEEDS_RECOVERY: u32 = 0x4;
pub const HAS_JOURNAL: u32 = 0x4;
pub const RESIZE_INODE: u32 = 0x10;
pub const SPARSE_SUPER: u32 = 0x1;
pub const LARGE_FILE: u32 = 0x2;

/// dir_prealloc, imagic_inodes, has_journal, ext_attr, resize_inode, dir_index.
const COMPAT_KNOWN: u32 = 0x3F;
const INCOMPAT_KNOWN: u32 = FILETYPE;
/// Includes btree_dir (0x4), which was never used.
const RO_COMPAT_KNOWN: u32 = SPARSE_SUPER | LARGE_FILE | 0x4;

type Names = &'static [(u32, &'static str)];

// The names that `dumpe2fs` prints.
const COMPAT: Names = &[
    (0x40, "lazy_bg"),
    (0x80, "snapshot_bitmap"),
    (0x100, "exclude_bitmap"),
    (0x200, "sparse_super2"),
    (0x400, "fast_commit"),
    (0x800, "stable_inodes"),
    (0x1000, "orphan_file"),
];
const INCOMPAT: Names = &[
    (0x1, "compression"),
    (0x8, "journal_dev"),
    (0x10, "meta_bg"),
    (0x40, "extent"),
    (0x80, "64bit"),
    (0x100, "mmp"),
    (0x200, "flex_bg"),
    (0x400, "ea_inode"),
    (0x1000, "dirdata"),
    (0x2000, "metadata_csum_seed"),
    (0x4000, "large_dir"),
    (0x8000, "inline_data"),
    (0x10000, "encrypt"),
    (0x20000, "casefold"),
];
const RO_COMPAT: Names = &[
    (0x8, "huge_file"),
    (0x10, "uninit_bg"),
    (0x20, "dir_nlink"),
    (0x40, "extra_isize"),
    (0x80, "snapshot"),
    (0x100, "quota"),
    (0x200, "bigalloc"),
    (0x400, "metadata_csum"),
    (0x800, "replica"),
    (0x1000, "read-only"),
    (0x2000, "project"),
    (0x4000, "shared_blocks"),
    (0x8000, "verity"),
    (0x10000, "orphan_present"),
];

impl Features {
    /// Fails with the reason if a volume with these features is not supported.
    pub fn refusal(&self) -> Result<(), String> {
        let words = [
            (self.compat & !COMPAT_KNOWN, COMPAT, "compatible"),
            (self.incompat & !(INCOMPAT_KNOWN | NEEDS_RECOVERY), INCOMPAT, "incompatible"),
            (self.ro_compat & !RO_COMPAT_KNOWN, RO_COMPAT, "read-only compatible"),
        ];
        let names: Vec<_> = words
            .into_iter()
            .flat_map(|(unknown, names, kind)| names_of(unknown, names, kind))
            .collect();
        match names.len() {
            0 if self.incompat & NEEDS_RECOVERY != 0 => {
                Err("its journal must be recovered: mount it once, or run `e2fsck -p`".into())
            }
            0 => Ok(()),
            1 => Err(format!(
                "the volume has the feature {}, which ext2 and ext3 do not have",
                names[0]
            )),
            _ => Err(format!(
                "the volume has the features {}, which ext2 and ext3 do not have",
                names.join(", ")
            )),
        }
    }
}

fn names_of(bits: u32, names: Names, kind: &str) -> Vec<String> {
    let each = (0..u32::BITS).map(|n| 1 << n).filter(|bit| bits & bit != 0);
    let name = |bit: u32| match names.iter().find(|(known, _)| *known == bit) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("{bit:#x} ({kind}, of no known name)"),
    };
    each.map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_mke2fs_gives_ext3_is_accepted() {
        let ext3 =
            Features { compat: 0x3C, incompat: FILETYPE, ro_compat: SPARSE_SUPER | LARGE_FILE };
        assert_eq!(ext3.refusal(), Ok(()));
        assert_eq!(Features::default().refusal(), Ok(()));
    }

    #[test]
    fn every_other_feature_is_refused_by_its_name() {
        let each = (0..u32::BITS).map(|n| 1 << n);
        for bit in each {
            for (features, known) in [
                (Features { compat: bit, ..Features::default() }, COMPAT_KNOWN),
                (Features { incompat: bit, ..Features::default() }, INCOMPAT_KNOWN),
                (Features { ro_compat: bit, ..Features::default() }, RO_COMPAT_KNOWN),
            ] {
                assert_eq!(features.refusal().is_ok(), bit & known != 0, "{features:?}");
            }
        }
        let ext4 = Features { compat: 0x3C, incompat: 0x2C2, ro_compat: 0x46B };
        let refusal = ext4.refusal().unwrap_err();
        for name in
            ["extent", "64bit", "flex_bg", "huge_file", "dir_nlink", "extra_isize", "metadata_csum"]
        {
            assert!(refusal.contains(name), "{refusal}");
        }
    }

    #[test]
    fn a_journal_that_must_be_recovered_is_told_with_advice() {
        let refusal =
            Features { incompat: FILETYPE | NEEDS_RECOVERY, ..Features::default() }.refusal();
        assert!(refusal.unwrap_err().contains("e2fsck -p"));
    }
}
