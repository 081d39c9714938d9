//! What a file tells of itself.

use super::*;
use crate::options::Growth;

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
    file.append(&record(3, 2 * WISHES.cap_bytes / BLOCK_BYTES), false).unwrap();
    assert_eq!(file.stats().growth_waits, 2);
}

#[test]
fn why_it_cannot_be_recycled() {
    let elsewhere = Ground { overwrites_in_place: false, ..ground(Some(Prepared::Unwritten)) };
    let core: Core<u32> = Core::new(0, elsewhere, Planner::new(WISHES), None);
    assert!(core.can_recycle().unwrap_err().contains("would write elsewhere"));
    let core: Core<u32> = Core::new(0, ground(None), Planner::new(WISHES), None);
    assert!(core.can_recycle().unwrap_err().contains("does not grow ahead"));
    assert_eq!(bare_core().can_recycle(), Ok(()));
}
