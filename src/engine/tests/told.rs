//! The properties and counters that a file reports.

use super::*;
use crate::engine::core::Dio;
use crate::rules::merge::Refusals;
use crate::rules::policy::Growth;

#[test]
fn how_it_grows() {
    for (prepared, growth) in [
        (Some(Prepared::Unwritten), Growth::Unwritten),
        (Some(Prepared::Zeroed), Growth::Zeroed),
        (None, Growth::None),
    ] {
        let file = open_on(Disk::new(DISK_BYTES), prepared, FileSystems::default()).unwrap();
        assert_eq!(file.growth(), growth);
    }
}

#[test]
fn how_often_an_append_waited_for_space() {
    let file = open(Disk::new(DISK_BYTES));
    assert_eq!(file.stats().growth_waits, 0);
    file.append(&record(1, 1), false).unwrap();
    assert_eq!(file.stats().growth_waits, 1);
    file.append(&record(2, 1), false).unwrap();
    assert_eq!(file.stats().growth_waits, 1, "there is space ahead");
    file.append(&record(3, 2 * GROWTH_CONFIG.cap_bytes / BLOCK_BYTES), false).unwrap();
    assert_eq!(file.stats().growth_waits, 2);
}

#[test]
fn why_it_cannot_be_recycled() {
    let elsewhere = FileProps { overwrites_in_place: false, ..props(Some(Prepared::Unwritten)) };
    let core: Core<u32> = Core::new(0, elsewhere, Planner::new(GROWTH_CONFIG), None);
    assert!(core.can_recycle().unwrap_err().contains("does not overwrite in place"));
    let core: Core<u32> = Core::new(0, props(None), Planner::new(GROWTH_CONFIG), None);
    assert!(core.can_recycle().unwrap_err().contains("does not grow ahead"));
    assert_eq!(bare_core().can_recycle(), Ok(()));
}

/// A core over 16 written blocks, and the data of its operations.
fn core_with(limits: Limits) -> (Core<u32>, Buffer) {
    let props = FileProps { limits, ..props(None) };
    (Core::new(16 * BLOCK_BYTES, props, Planner::new(GROWTH_CONFIG), None), record(1, 16))
}

/// Durable writes submitted together, each with its first block and its length in blocks.
fn write_together(core: &mut Core<u32>, data: &[u8], writes: &[(u64, u64)]) -> Outbox<u32> {
    let mut out = Outbox::default();
    let dio = |&(block, blocks): &(u64, u64)| {
        Dio::Write(Segment::of(&data[..(blocks * BLOCK_BYTES) as usize]), block * BLOCK_BYTES)
    };
    core.submit((1..).zip(writes).map(|(token, write)| (token, dio(write), true)), &mut out);
    out
}

#[test]
fn why_overwrites_did_not_share_a_request() {
    let limits = Limits { bytes_max: 4 * BLOCK_BYTES, segments_max: 3 };
    for (writes, requests, refusals) in [
        (&[(0, 1), (1, 1), (2, 1)][..], 1, Refusals::default()),
        (&[(0, 1), (2, 1), (4, 1)], 3, Refusals { gap: 2, ..Refusals::default() }),
        (&[(0, 2), (2, 3)], 2, Refusals { bytes: 1, ..Refusals::default() }),
        (&[(0, 1), (1, 1), (2, 1), (3, 1)], 2, Refusals { segments: 1, ..Refusals::default() }),
        (&[(0, 2), (1, 2)], 1, Refusals { order: 1, ..Refusals::default() }),
    ] {
        let (mut core, data) = core_with(limits);
        let out = write_together(&mut core, &data, writes);
        assert_eq!((out.requests.len(), core.refusals()), (requests, refusals), "{writes:?}");
    }
}

#[test]
fn a_write_that_waits_for_its_order_counts_once() {
    let (mut core, data) = core_with(props(None).limits);
    let mut out = write_together(&mut core, &data, &[(0, 2), (4, 1), (8, 1), (1, 1)]);
    let refusals = Refusals { gap: 2, order: 1, ..Refusals::default() };
    let first = out.requests.remove(0).id;
    for other in std::mem::take(&mut out.requests) {
        core.on_completed(other.id, Ok(()), &mut out);
        assert_eq!((out.requests.len(), core.refusals()), (0, refusals), "it still waits");
    }
    core.on_completed(first, Ok(()), &mut out);
    assert_eq!((out.requests.len(), core.refusals()), (1, refusals));
}

#[test]
fn why_appends_did_not_share_a_request() {
    let (mut core, data) = core_with(Limits { bytes_max: 4 * BLOCK_BYTES, segments_max: 2 });
    let mut out = Outbox::default();
    let block = Segment::of(&data[..BLOCK_BYTES as usize]);
    let mut append = |core: &mut Core<u32>, segment| {
        core.append(1, segment, false, &mut out);
        core.refusals()
    };
    let mut wanted = Refusals::default();
    for _ in 0..3 {
        assert_eq!(append(&mut core, block), wanted, "one goes, two wait");
    }
    wanted.segments += 1;
    assert_eq!(append(&mut core, block), wanted);
    wanted.bytes += 1;
    assert_eq!(append(&mut core, Segment::of(&data[..4 * BLOCK_BYTES as usize])), wanted);
    core.write(1, block, 64 * BLOCK_BYTES, false, &mut out);
    wanted.gap += 1;
    assert_eq!(core.refusals(), wanted);
}

#[test]
fn an_append_that_begins_in_a_block_on_its_way_counts_once() {
    let (mut core, mut out) = (bare_core(), Outbox::default());
    let data = record(1, 1);
    let short = Segment::of(&data[..100]);
    core.append(1, short, false, &mut out);
    run_grower(&mut core, &mut out);
    for (_, call) in std::mem::take(&mut out.calls) {
        core.on_called(call, &mut out);
    }
    assert_eq!((out.requests.len(), core.refusals()), (1, Refusals::default()));
    for _ in 0..2 {
        core.append(2, short, false, &mut out);
        assert_eq!(core.refusals(), Refusals { order: 1, ..Refusals::default() });
    }
}
