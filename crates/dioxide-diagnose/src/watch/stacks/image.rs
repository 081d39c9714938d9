//! The unwind tables and symbols of an ELF file. The tables are read once, the symbols at the end,
//! for the functions that matter.

use gimli::{
    BaseAddresses, EhFrame, EhFrameHdr, EndianSlice, NativeEndian, ParsedEhFrameHdr, Pointer,
    UnwindContext, UnwindSection, UnwindTableRow,
};
use object::NativeEndian as Native;
use object::elf::PF_X;
use object::read::elf::{ElfFile64, ElfSegment64};
use object::{
    Object, ObjectSection, ObjectSegment, ObjectSymbol, ReadCache, SegmentFlags, SymbolKind,
};
use std::collections::BTreeMap;
use std::fs::File;

type Slice<'a> = EndianSlice<'a, NativeEndian>;

/// Larger unwind tables are not read.
const TABLE_BYTES_MAX: u64 = 256 << 20;
/// The smallest page.
const PAGE: u64 = 4096;
/// Further symbols are not read.
const SYMBOLS_MAX: usize = 2_000_000;

/// An ELF file with unwind tables.
#[derive(Debug)]
pub struct Image {
    file: File,
    /// Of each segment with code: where it is in the file, where it ends, and the address of its
    /// first byte.
    segments: Vec<(u64, u64, u64)>,
    eh_frame: Vec<u8>,
    eh_frame_hdr: Vec<u8>,
    bases: BaseAddresses,
}

/// A function, and how to find its caller from one of its addresses.
pub struct Place<'ctx> {
    /// The address of its first instruction, as linked.
    pub start: u64,
    pub row: &'ctx UnwindTableRow<usize>,
}

impl Image {
    /// None if the file is not ELF, or has no unwind tables.
    pub fn load(file: File) -> Option<Self> {
        let cache = ReadCache::new(file.try_clone().ok()?);
        let elf = ElfFile64::<Native, _>::parse(&cache).ok()?;
        let section = |name: &str| {
            let section = elf.section_by_name(name)?;
            let is_small = section.size() <= TABLE_BYTES_MAX;
            Some((section.address(), is_small.then(|| section.data().ok())??.to_vec()))
        };
        let (eh_frame_at, eh_frame) = section(".eh_frame")?;
        let (hdr_at, eh_frame_hdr) = section(".eh_frame_hdr")?;
        let text_at = elf.section_by_name(".text").map_or(0, |text| text.address());
        let has_code = |segment: &ElfSegment64<'_, '_, Native, _>| match segment.flags() {
            SegmentFlags::Elf { p_flags, .. } => p_flags.contains(PF_X),
            _ => false,
        };
        let range = |segment: ElfSegment64<'_, '_, Native, _>| {
            let (offset, bytes) = segment.file_range();
            (offset, offset.saturating_add(bytes), segment.address())
        };
        let segments = elf.segments().filter(has_code).map(range).collect();
        let bases = BaseAddresses::default()
            .set_eh_frame(eh_frame_at)
            .set_eh_frame_hdr(hdr_at)
            .set_text(text_at);
        Some(Self { file, segments, eh_frame, eh_frame_hdr, bases })
    }

    /// The address, as linked, of a byte of a mapping with code. Mappings begin at pages. The first
    /// page may begin with the end of another segment.
    pub fn address_of(&self, offset: u64) -> Option<u64> {
        let contains =
            |(start, end, _): &&(u64, u64, u64)| (start - start % PAGE..*end).contains(&offset);
        let (start, _, address) = self.segments.iter().find(contains)?;
        Some(address.wrapping_add(offset).wrapping_sub(*start))
    }

    /// The function that contains an address, as linked.
    pub fn place<'ctx>(
        &self,
        address: u64,
        context: &'ctx mut UnwindContext<usize>,
    ) -> Option<Place<'ctx>> {
        let frames: EhFrame<Slice<'_>> = EhFrame::new(&self.eh_frame, NativeEndian);
        let table = self.table()?;
        let pointer = table.table()?.lookup(address, &self.bases).ok()?;
        let Pointer::Direct(at) = pointer else { return None };
        let offset = at.checked_sub(self.bases.eh_frame.section?)?;
        let offset = gimli::EhFrameOffset(usize::try_from(offset).ok()?);
        let entry = frames.fde_from_offset(&self.bases, offset, EhFrame::cie_from_offset).ok()?;
        if !entry.contains(address) {
            return None;
        }
        let row = entry.unwind_info_for_address(&frames, &self.bases, context, address).ok()?;
        Some(Place { start: entry.initial_address(), row })
    }

    fn table(&self) -> Option<ParsedEhFrameHdr<Slice<'_>>> {
        EhFrameHdr::new(&self.eh_frame_hdr, NativeEndian).parse(&self.bases, 8).ok()
    }

    /// The symbols that begin at these addresses, as linked, or that contain them.
    pub fn names(&self, addresses: &[u64]) -> BTreeMap<u64, String> {
        let mut names: BTreeMap<u64, (bool, String)> = BTreeMap::new();
        let Ok(file) = self.file.try_clone() else { return BTreeMap::new() };
        let cache = ReadCache::new(file);
        let Ok(elf) = ElfFile64::<Native, _>::parse(&cache) else {
            return BTreeMap::new();
        };
        let symbols = elf.symbols().chain(elf.dynamic_symbols()).take(SYMBOLS_MAX);
        for symbol in symbols.filter(|symbol| symbol.kind() == SymbolKind::Text) {
            let (start, end) = (symbol.address(), symbol.address().saturating_add(symbol.size()));
            for address in addresses {
                let is_start = start == *address;
                let is_better = names.get(address).is_none_or(|(known, _)| is_start && !known);
                if (is_start || (start..end).contains(address)) && is_better {
                    let Ok(name) = symbol.name() else { continue };
                    names.insert(*address, (is_start, demangled(name)));
                }
            }
        }
        names.into_iter().map(|(address, (_, name))| (address, name)).collect()
    }
}

/// The name in the source, without parameters, template arguments and hashes.
fn demangled(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
    let cpp = cpp_demangle::Symbol::new(name).ok();
    cpp.and_then(|symbol| symbol.demangle_with_options(&options).ok())
        .unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_source() {
        assert_eq!(demangled("XLogFlush"), "XLogFlush");
        assert_eq!(demangled("_ZN7rocksdb6DBImpl5FlushEi"), "rocksdb::DBImpl::Flush");
        assert_eq!(demangled("_ZN4core3fmt5write17h0123456789abcdefE"), "core::fmt::write");
    }

    #[test]
    fn own_functions_are_found() {
        let image = Image::load(File::open("/proc/self/exe").unwrap()).unwrap();
        let mut context = UnwindContext::new();
        assert!(image.place(1, &mut context).is_none());
        assert!(image.address_of(u64::MAX).is_none());
        let text = Image::load(File::open("/etc/hostname").unwrap());
        assert!(text.is_none());
    }
}
