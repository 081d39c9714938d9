//! The plan of the copy scenario.

use super::{
    Abilities, Crews, Draft, Plan, Rows, check_space, distinct, points, provisional, size, typed,
};
use crate::args;
use crate::args::Stream;
use crate::bench::copy::{CHUNK_BYTES, COPIES};
use crate::bench::estimate::Typed;
use crate::bench::place::BenchTarget;
use crate::bench::work::{Point, Route, Scenario, Work};
use crate::sizes::Sizes;
use anyhow::{Result, ensure};
use dioxide::{Durability, Growth};

/// Limit of the size of the file, without `--size`.
pub(super) const SIZE_DEFAULT_MAX_BYTES: u64 = 256 << 20;

impl Plan {
    pub(super) fn copy(args: &args::BenchCopy) -> Result<Self> {
        let place = BenchTarget::directory(&args.dir)?;
        let pace = args::PaceArgs { runtime: args.runtime, rounds: args.rounds, rate: None };
        let drafts = vec![draft(&place, rows(&args.rw), typed(pace, args.size))?];
        Ok(Self { place, drafts })
    }
}

pub(super) fn draft(place: &BenchTarget, rows: Rows, typed: Typed) -> Result<Draft> {
    let room = size(place, typed.size_bytes, u64::MAX)? / 2;
    let size_bytes = typed.size_bytes.unwrap_or(SIZE_DEFAULT_MAX_BYTES.min(room));
    let size_bytes = size_bytes / CHUNK_BYTES * CHUNK_BYTES;
    ensure!(size_bytes > 0, "the file has less than 1 MiB; see --size");
    check_space(place, files(&rows).saturating_mul(size_bytes))?;
    let abilities = Abilities::of(place, Growth::Unwritten)?;
    let work = Work::new(rows, provisional(typed), size_bytes, abilities.units);
    Ok(Draft::new(work, typed))
}

/// The files of a run, at most: a copy needs as much space as its source.
fn files(rows: &Rows) -> u64 {
    let copies = rows.iter().any(|(point, _)| point.rwmixread == Some(COPIES));
    if copies { 2 } else { 1 }
}

/// Each kind of stream on all its routes.
pub(super) fn rows(rw: &[Stream]) -> Rows {
    let crews = Crews::new(&[1], &[]);
    let durability = [Durability::OnSync];
    let point = points(&[Sizes::one(CHUNK_BYTES)], &[1], &durability, Growth::None, None)[0];
    let of = |stream| {
        let rwmixread = match stream {
            Stream::Write => 0,
            Stream::Copy => COPIES,
            Stream::Read => 100,
        };
        Point { scenario: Scenario::Copy, growth: None, rwmixread: Some(rwmixread), ..point }
    };
    crews.rows(distinct(rw).into_iter().map(of).collect())
}

/// The rows of `dioxide bench` without a scenario: the least that shows a difference.
pub(super) fn tour_rows() -> Rows {
    let mut rows = rows(&[Stream::Copy]);
    rows.retain(|(_, route)| matches!(route, Route::Kernel | Route::Dioxide));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stream_is_measured_once_on_all_its_paths() {
        let names: Vec<_> = rows(&[Stream::Read, Stream::Write, Stream::Read])
            .iter()
            .map(|(point, route)| (point.rwmixread.unwrap(), route.name()))
            .collect();
        let read = ["one-thread", "kernel", "dioxide"].map(|path| (100, path));
        let written = ["one-thread", "kernel", "unsynced", "dioxide"].map(|path| (0, path));
        assert_eq!(names, [&read[..], &written].concat());
    }

    /// The defect: with space for the source alone, a round ended with ENOSPC.
    #[test]
    fn a_copy_had_no_space() {
        let place = BenchTarget::directory(&std::env::temp_dir()).unwrap();
        let typed = |parts| {
            let size_bytes = Some(place.room_bytes().unwrap() / 8 * parts);
            Typed { size_bytes, ..Typed::default() }
        };
        let [copied, written] = [Stream::Copy, Stream::Write].map(|stream| rows(&[stream]));
        let refusal = draft(&place, copied.clone(), typed(6)).err().unwrap().to_string();
        assert!(refusal.contains(" and this needs "), "{refusal}");
        draft(&place, copied, typed(2)).unwrap();
        draft(&place, written, typed(6)).unwrap();
    }
}
