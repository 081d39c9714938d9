//! Checks a log of frames byte by byte against the offsets acknowledged before and after the power
//! cut.

use super::{Losses, POISON};
use crate::SECTOR;
use crate::history::{Fate, History};
use crate::mark::Name;
use dioxide_testkit::records::Frame;

/// Checks all bytes, and that the log's owner finds every frame that must be there. Returns the end
/// of the last whole frame.
///
/// Other frames may be torn at sector boundaries. Each sector then has a prefix of its data,
/// followed by zeros.
pub(super) fn look(bytes: &[u8], block: u64, history: &History, losses: &mut Losses) -> u64 {
    let mut expected = vec![0; bytes.len()];
    for (name, record) in &history.records {
        let Some(offset) = record.offset else { continue };
        let frame = frame_of(*name, record.bytes).bytes();
        let start = (offset as usize).min(bytes.len());
        let end = (start + frame.len()).min(bytes.len());
        expected[start..end].copy_from_slice(&frame[..end - start]);
    }
    for (n, (found, expected)) in bytes.chunks(SECTOR).zip(expected.chunks(SECTOR)).enumerate() {
        if let Some(wrong) = wrong_with(found, expected) {
            losses.add(|| format!("at {}: {wrong}", n * SECTOR));
        }
    }
    let found = Frame::find_all(bytes, block);
    for (name, record) in history.records.iter().filter(|(_, record)| record.fate == Fate::Kept) {
        let offset = record.offset.expect("a durable record has an offset");
        let place = found.binary_search_by_key(&offset, |(offset, _)| *offset);
        let is_there = place.is_ok_and(|place| found[place].1 == frame_of(*name, record.bytes));
        losses.add_unless(is_there, || format!("lost: {name:?}, {record:?}"));
    }
    found.last().map_or(0, |(offset, frame)| offset + frame.len)
}

fn frame_of(name: Name, len: u64) -> Frame {
    Frame { writer: name.writer, number: name.number, len }
}

/// The forbidden content of a sector, in words.
fn wrong_with(found: &[u8], expected: &[u8]) -> Option<String> {
    let same = found.iter().zip(expected).take_while(|(found, expected)| found == expected).count();
    let rest = &found[same..];
    if rest.iter().all(|byte| *byte == 0) {
        return None;
    }
    Some(match rest[0] {
        POISON if rest.iter().all(|byte| *byte == POISON) => {
            "memory as it was after its call had returned".to_owned()
        }
        0xA5 if rest.iter().all(|byte| *byte == 0xA5) => "old content of the disk".to_owned(),
        _ => format!(
            "{:02x?}…, where {:02x?}… or zeros should be",
            &rest[..rest.len().min(16)],
            &expected[same..][..rest.len().min(16)]
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BLOCK;
    use crate::mark::Act;

    fn name(number: u64) -> Name {
        Name { writer: 1, number }
    }

    /// Two frames of 1000 bytes: one durable at 0, the next one acknowledged later.
    fn history() -> History {
        let before = [
            Act::AppendFrame(name(0), 1000),
            Act::Durable(name(0), 0),
            Act::AppendFrame(name(1), 1000),
        ];
        History::foreseeing(before, [Act::Durable(name(1), 1000)])
    }

    fn log() -> Vec<u8> {
        let mut log = [0, 1].map(|number| frame_of(name(number), 1000).bytes()).concat();
        log.resize(BLOCK, 0);
        log
    }

    fn told(bytes: &[u8]) -> (u64, String) {
        let mut losses = Losses::default();
        let end = look(bytes, BLOCK as u64, &history(), &mut losses);
        (end, losses.first.join("; "))
    }

    #[test]
    fn a_log_is_all_right_whole_and_torn_behind_what_is_durable() {
        assert_eq!(told(&log()), (2000, String::new()));
        let mut torn = log();
        torn[1000..1024].fill(0);
        assert_eq!(told(&torn), (1000, String::new()));
        let mut torn = log();
        torn[1536..].fill(0);
        assert_eq!(told(&torn), (1000, String::new()));
    }

    #[test]
    fn every_kind_of_loss_is_told() {
        let with = |place: usize, bytes: &[u8]| {
            let mut log = log();
            log[place..place + bytes.len()].copy_from_slice(bytes);
            told(&log).1
        };
        assert!(with(0, &[0; SECTOR]).contains("lost"));
        assert!(with(512, &[0; 488]).contains("lost"));
        assert!(with(2048, &[0xA5; SECTOR]).contains("old content"));
        assert!(with(2048, &[POISON; SECTOR]).contains("after its call"));
        assert!(with(1100, &[0; 8]).contains("should be"));
        assert!(with(2000, &[1]).contains("should be"));
        assert!(told(&[]).1.contains("lost"));
    }
}
