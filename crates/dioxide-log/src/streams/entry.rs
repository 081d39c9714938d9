//! The payload of a frame in a log of streams, as docs/log-format.md describes it. A value.

use crate::format::u64_at;
use crate::lsn::Lsn;

/// The bytes before the record.
pub const HEADER_BYTES: usize = 17;
const KIND_AT: usize = 16;
const BOUNDS_BYTES: usize = HEADER_BYTES + 8;

const RECORD: u8 = 1;
const COPY: u8 = 2;
const BOUNDS: u8 = 3;

/// A change of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// The next record of a stream.
    Record { stream: u64, lsn: Lsn, record: &'a [u8] },
    /// A record that lies in an older segment as well.
    Copy { stream: u64, lsn: Lsn, record: &'a [u8] },
    /// The stream has the records from `front` on, and `next` is the number of the next one.
    Bounds { stream: u64, front: Lsn, next: Lsn },
}

impl<'a> Entry<'a> {
    pub fn encode(&self) -> Vec<u8> {
        let encode = |stream: u64, lsn: Lsn, kind: u8, body: &[u8]| {
            let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
            bytes.extend(stream.to_le_bytes());
            bytes.extend(lsn.0.to_le_bytes());
            bytes.push(kind);
            bytes.extend(body);
            bytes
        };
        match *self {
            Self::Record { stream, lsn, record } => encode(stream, lsn, RECORD, record),
            Self::Copy { stream, lsn, record } => encode(stream, lsn, COPY, record),
            Self::Bounds { stream, front, next } => {
                encode(stream, next, BOUNDS, &front.0.to_le_bytes())
            }
        }
    }

    /// The stream that it changes.
    pub fn stream(&self) -> u64 {
        match *self {
            Self::Record { stream, .. } | Self::Copy { stream, .. } => stream,
            Self::Bounds { stream, .. } => stream,
        }
    }

    /// Parses the payload of a frame. None if it is not one of a log of streams.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (head, record) = bytes.split_at_checked(HEADER_BYTES)?;
        let (stream, lsn) = (u64_at(head, 0), Lsn(u64_at(head, 8)));
        let numbers = Lsn::FIRST..=Lsn::LAST;
        if !numbers.contains(&lsn) {
            return None;
        }
        match head[KIND_AT] {
            RECORD => Some(Self::Record { stream, lsn, record }),
            COPY => Some(Self::Copy { stream, lsn, record }),
            BOUNDS if bytes.len() == BOUNDS_BYTES => {
                let front = Lsn(u64_at(record, 0));
                let is_sound = (Lsn::FIRST..=lsn).contains(&front);
                is_sound.then_some(Self::Bounds { stream, front, next: lsn })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_entry_is_parsed_as_it_was_written(
            stream: u64, lsn in 1..=Lsn::LAST.0, front: u64, record: Vec<u8>,
        ) {
            let (lsn, front, record) = (Lsn(lsn), Lsn(1 + front % lsn), &record[..]);
            for entry in [
                Entry::Record { stream, lsn, record },
                Entry::Copy { stream, lsn, record },
                Entry::Bounds { stream, front, next: lsn },
            ] {
                let bytes = entry.encode();
                prop_assert_eq!(Entry::parse(&bytes), Some(entry));
            }
        }

        #[test]
        fn any_bytes_are_refused_without_a_panic(bytes: Vec<u8>) {
            let _ = Entry::parse(&bytes);
        }
    }

    #[test]
    fn bounds_that_no_stream_has_are_refused() {
        let bounds = |front, next| Entry::Bounds { stream: 1, front: Lsn(front), next: Lsn(next) };
        assert!(Entry::parse(&bounds(3, 3).encode()).is_some());
        for (front, next) in [(4, 3), (0, 3), (0, 0), (1, Lsn::LAST.0 + 1)] {
            assert_eq!(Entry::parse(&bounds(front, next).encode()), None, "{front}..{next}");
        }
        let mut longer = bounds(1, 3).encode();
        longer.push(0);
        assert_eq!(Entry::parse(&longer), None);
    }
}
