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
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;

type Slice<'a> = EndianSlice<'a, NativeEndian>;

/// Larger unwind tables are not read.
const TABLE_BYTES_MAX: u64 = 64 << 20;
/// A function with a longer entry in the unwind table is not unwound. Its instructions run for each
/// stack.
const ENTRY_BYTES_MAX: usize = 64 << 10;
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
pub struct CodePlace<'ctx> {
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
    ) -> Option<CodePlace<'ctx>> {
        let frames: EhFrame<Slice<'_>> = EhFrame::new(&self.eh_frame, NativeEndian);
        let table = self.table()?;
        let pointer = table.table()?.lookup(address, &self.bases).ok()?;
        let Pointer::Direct(at) = pointer else { return None };
        let offset = at.checked_sub(self.bases.eh_frame.section?)?;
        let offset = gimli::EhFrameOffset(usize::try_from(offset).ok()?);
        let entry = frames.fde_from_offset(&self.bases, offset, EhFrame::cie_from_offset).ok()?;
        let is_long = |bytes: usize| bytes > ENTRY_BYTES_MAX;
        if !entry.contains(address)
            || is_long(entry.entry_len())
            || is_long(entry.cie().entry_len())
        {
            return None;
        }
        let row = entry.unwind_info_for_address(&frames, &self.bases, context, address).ok()?;
        Some(CodePlace { start: entry.initial_address(), row })
    }

    fn table(&self) -> Option<ParsedEhFrameHdr<Slice<'_>>> {
        EhFrameHdr::new(&self.eh_frame_hdr, NativeEndian).parse(&self.bases, 8).ok()
    }

    /// The symbols that begin at these addresses, as linked, or that contain them.
    pub fn names(&self, addresses: &[u64]) -> BTreeMap<u64, String> {
        let Ok(file) = self.file.try_clone() else { return BTreeMap::new() };
        let cache = ReadCache::new(file);
        let Ok(elf) = ElfFile64::<Native, _>::parse(&cache) else {
            return BTreeMap::new();
        };
        let symbols = elf.symbols().chain(elf.dynamic_symbols()).take(SYMBOLS_MAX);
        let of_code = symbols.filter(|symbol| symbol.kind() == SymbolKind::Text).map(|symbol| {
            let end = symbol.address().saturating_add(symbol.size());
            (symbol.address()..end, move || symbol.name().ok().map(demangled))
        });
        names(of_code, addresses)
    }
}

/// The first symbol that begins at each address, or else the first that contains it.
fn names(
    symbols: impl Iterator<Item = (Range<u64>, impl Fn() -> Option<String>)>,
    addresses: &[u64],
) -> BTreeMap<u64, String> {
    let mut names = BTreeMap::new();
    let mut unnamed: BTreeSet<u64> = addresses.iter().copied().collect();
    // Those whose name, if any, is of a symbol that only contains them.
    let mut without_start = unnamed.clone();
    for (range, name) in symbols {
        let is_start = without_start.contains(&range.start);
        if !is_start && unnamed.range(range.clone()).next().is_none() {
            continue;
        }
        let Some(name) = name() else { continue };
        if is_start {
            without_start.remove(&range.start);
            unnamed.remove(&range.start);
            names.insert(range.start, name.clone());
        }
        let inside: Vec<u64> = unnamed.range(range).copied().collect();
        for address in inside {
            unnamed.remove(&address);
            names.insert(address, name.clone());
        }
    }
    names
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
    use crate::watch::cpu_time;
    use std::time::Duration;

    #[test]
    fn names_are_those_of_the_source() {
        assert_eq!(demangled("XLogFlush"), "XLogFlush");
        assert_eq!(demangled("_ZN7rocksdb6DBImpl5FlushEi"), "rocksdb::DBImpl::Flush");
        assert_eq!(demangled("_ZN4core3fmt5write17h0123456789abcdefE"), "core::fmt::write");
    }

    #[test]
    fn the_symbol_that_begins_at_an_address_names_it() {
        let symbols = [(10..30, "outer"), (10..20, "alias"), (15..20, "inner"), (40..40, "label")];
        let named = |addresses: &[u64]| {
            let symbols =
                symbols.iter().map(|(range, name)| (range.clone(), || Some((*name).into())));
            names(symbols, addresses).into_iter().collect::<Vec<_>>()
        };
        let expected = [(10, "outer"), (15, "inner"), (16, "outer"), (29, "outer"), (40, "label")];
        let addresses = [40, 29, 16, 15, 10, 9, 30, 41, 15];
        assert_eq!(named(&addresses), expected.map(|(address, name)| (address, name.to_owned())));
    }

    /// Each symbol was tried on each address.
    #[test]
    fn symbols_of_a_large_program_took_minutes() {
        let begun = cpu_time();
        let addresses: Vec<u64> = (0..10_000).map(|nth| nth * 320 + 8).collect();
        let symbols = (0..200_000).map(|nth| (nth * 16..nth * 16 + 16, || Some("f".to_owned())));
        assert_eq!(names(symbols, &addresses).len(), addresses.len());
        let took = cpu_time() - begun;
        assert!(took < Duration::from_secs(20), "{took:?}");
    }

    /// The tables of one function of 16 bytes, with this number of remember and restore pairs.
    fn with_pairs(pairs: usize) -> Image {
        const FRAME_AT: u32 = 0x10_0000;
        const HDR_AT: u32 = 0x90_0000;
        const CODE_AT: u32 = 0x1000;
        let entry = |mut body: Vec<u8>| {
            body.resize(body.len().next_multiple_of(8) + 4, 0);
            [(body.len() as u32).to_ne_bytes().to_vec(), body].concat()
        };
        // Version 1, "zR", factors 1 and -8, return address 16, pc-relative 4-byte addresses. Then:
        // the frame begins at rsp + 8, and the return address is below it.
        let cie = [0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1];
        let mut eh_frame = entry(cie.to_vec());
        let fde_at = eh_frame.len() as u32;
        let to_code = CODE_AT.wrapping_sub(FRAME_AT + fde_at + 8);
        let words = [fde_at + 4, to_code, 16].map(u32::to_ne_bytes).concat();
        eh_frame.extend(entry([words, vec![0], [0x0a, 0x0b].repeat(pairs)].concat()));
        eh_frame.extend([0; 4]);
        let hdr_words = [
            FRAME_AT.wrapping_sub(HDR_AT + 4),
            1,
            CODE_AT.wrapping_sub(HDR_AT),
            (FRAME_AT + fde_at).wrapping_sub(HDR_AT),
        ];
        let eh_frame_hdr =
            [vec![1, 0x1b, 0x03, 0x3b], hdr_words.map(u32::to_ne_bytes).concat()].concat();
        let bases = BaseAddresses::default()
            .set_eh_frame(FRAME_AT.into())
            .set_eh_frame_hdr(HDR_AT.into())
            .set_text(CODE_AT.into());
        let file = File::open("/proc/self/exe").unwrap();
        Image { file, segments: Vec::new(), eh_frame, eh_frame_hdr, bases }
    }

    /// One function of a hostile program had 100 MB of instructions.
    #[test]
    fn endless_unwind_instructions_are_refused() {
        let start = |pairs| {
            let mut context = UnwindContext::new();
            with_pairs(pairs).place(0x1008, &mut context).map(|place| place.start)
        };
        assert_eq!(start(100), Some(0x1000));
        assert_eq!(start(ENTRY_BYTES_MAX), None);
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
