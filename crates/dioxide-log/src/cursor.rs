//! The way along the frames of a segment, from a known frame to a record.

use crate::error::Result;
use crate::format::frame::{Frame, Kind, Refused, frame_bytes, payload_of};
use crate::index::Place;
use crate::lsn::Lsn;
use crate::recover::Member;
use crate::window::Window;

/// The next frame of a reader.
#[derive(Debug)]
pub struct Cursor {
    pub member: Member,
    pub offset: u64,
    /// The record that comes next there.
    lsn: Lsn,
    /// The records that follow each other in the segment, as far as they were known.
    pub run: (Lsn, Lsn),
}

impl Cursor {
    pub fn new(place: Place, member: Member) -> Self {
        let Place { offset, lsn, run, .. } = place;
        Self { member, offset, lsn, run }
    }

    /// Expects no record any more. The segment stays open, as the next place may lie there.
    pub fn forget_run(&mut self) {
        self.run = (Lsn(0), Lsn(0));
    }

    /// Leaves for a segment, which may be another one.
    pub fn leave_for(self, segment: u64) {
        if self.member.header.number != segment {
            self.member.segment.was_read();
        }
    }

    /// Moves to the frame of a record, and returns the size of the frame. None if the frames do not
    /// lead there.
    pub fn seek(&mut self, window: &mut Window, lsn: Lsn) -> Result<Option<u64>> {
        let mut loaded = false;
        loop {
            let bytes = window.from(self.offset);
            let frame = match Frame::parse(bytes, self.member.home(), self.offset) {
                Ok(frame) => frame,
                Err(Refused::Longer(bytes))
                    if !loaded && self.offset + bytes <= self.member.header.segment_bytes =>
                {
                    window.load(&self.member.segment, self.offset, bytes)?;
                    // A frame may need a second, longer read.
                    loaded = bytes > frame_bytes(0);
                    continue;
                }
                Err(_) => return Ok(None),
            };
            let size = frame.bytes();
            match frame.kind {
                Kind::Record if frame.lsn == self.lsn && self.lsn == lsn => return Ok(Some(size)),
                Kind::Record if frame.lsn == self.lsn && self.lsn < lsn => {
                    self.lsn = self.lsn.next();
                }
                Kind::Front | Kind::Closed | Kind::Flushed => {}
                _ => return Ok(None),
            }
            self.offset += size;
            loaded = false;
        }
    }

    /// Returns the record that was [sought](Self::seek), and moves behind its frame.
    pub fn take<'a>(&mut self, window: &'a Window, size: u64) -> &'a [u8] {
        let bytes = window.from(self.offset);
        self.offset += size;
        self.lsn = self.lsn.next();
        payload_of(bytes)
    }
}
