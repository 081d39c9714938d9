//! The memory map of a process, and the files in it.

/// Device and inode of a mapped file.
pub type FileId = ((u32, u32), u64);

/// A line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub is_code: bool,
    /// Where it begins in its file, in bytes.
    pub offset: u64,
    /// None for memory without a file.
    pub file: Option<FileId>,
    pub path: String,
}

/// The mappings in ascending order. Lines of an unknown form are left out.
pub fn parse_maps(text: &str) -> Vec<Mapping> {
    let mut mappings: Vec<Mapping> = text.lines().filter_map(parse_line).collect();
    mappings.sort_by_key(|mapping| mapping.start);
    mappings
}

/// `7f00-7f10 r-xp 00001000 08:01 1234      /usr/lib/libc.so.6`. A path may contain spaces.
fn parse_line(line: &str) -> Option<Mapping> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let rights = words.next()?;
    let offset = hex(words.next()?)?;
    let (major, minor) = words.next()?.split_once(':')?;
    let inode: u64 = words.next()?.parse().ok()?;
    let device = (hex(major)? as u32, hex(minor)? as u32);
    Some(Mapping {
        start: hex(start)?,
        end: hex(end)?,
        is_code: rights.contains('x'),
        offset,
        file: (inode != 0).then_some((device, inode)),
        path: words.next().unwrap_or_default().trim_start().to_owned(),
    })
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

/// The mapping that contains an address.
pub fn at(mappings: &[Mapping], address: u64) -> Option<&Mapping> {
    let index = mappings.partition_point(|mapping| mapping.start <= address);
    mappings[..index].last().filter(|mapping| address < mapping.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_and_without_a_file() {
        let text = "7f20-7f30 rw-p 00000000 00:00 0 \n\
                    garbage\n\
                    7f00-7f10 r-xp 00001000 08:01 1234           /usr/lib/a b.so\n";
        let mappings = parse_maps(text);
        assert_eq!(mappings.len(), 2);
        let code = at(&mappings, 0x7f0f).unwrap();
        assert_eq!((code.offset, code.file), (0x1000, Some(((8, 1), 1234))));
        assert!(code.is_code && code.path == "/usr/lib/a b.so");
        assert_eq!(at(&mappings, 0x7f10), None);
        assert_eq!(at(&mappings, 0x7eff), None);
        assert_eq!(at(&mappings, 0x7f20).unwrap().file, None);
    }
}
