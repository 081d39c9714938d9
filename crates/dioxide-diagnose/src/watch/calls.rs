//! Decodes a system call from its number and arguments: its file, and the range in it.

use syscalls::Sysno;

/// A system call that a thread is in, from `/proc/PID/task/TID/syscall`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawCall {
    pub number: usize,
    pub arguments: [u64; 6],
}

/// The object of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// Nothing that matters here.
    Nothing,
    /// A descriptor.
    Descriptor(i32),
    /// Two descriptors, of which one may be a socket or a pipe.
    Copy { to: i32, from: i32 },
    /// Bytes of a descriptor.
    Transfer(Transfer),
    /// The futex at an address, whether it is used as a lock, and whether processes may share it.
    Futex { address: u64, is_lock: bool, is_shared: bool },
}

/// A read or write of a part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    pub descriptor: i32,
    /// In bytes. None if it is the descriptor's position.
    pub offset: Option<u64>,
    /// In bytes. None if it is too expensive to find out.
    pub length: Option<u64>,
    pub is_write: bool,
}

/// Longer vectors are not added up.
const VECTOR_MAX: u64 = 64;
/// The size of a `struct iovec`, an address and a length.
const IOVEC_BYTES: usize = 16;
/// The size of a `struct iocb` of linux/aio_abi.h.
const IOCB_BYTES: usize = 64;

/// Reads the watched program's memory at an address into its second argument. Returns whether it
/// could.
pub type ReadMemory<'a> = dyn Fn(u64, &mut [u8]) -> bool + 'a;

impl RawCall {
    pub fn name(&self) -> String {
        Sysno::new(self.number)
            .map_or_else(|| format!("syscall {}", self.number), |call| call.name().to_owned())
    }

    /// Whether its arguments contain the offset. Two consecutive samples with equal arguments are
    /// then most likely one call.
    pub fn has_offset(&self) -> bool {
        use Sysno::{pread64, preadv, preadv2, pwrite64, pwritev, pwritev2};
        matches!(
            Sysno::new(self.number),
            Some(pread64 | preadv | preadv2 | pwrite64 | pwritev | pwritev2)
        )
    }

    pub fn about(&self, read: &ReadMemory) -> About {
        use Sysno::{
            copy_file_range, fallocate, fdatasync, flock, fsync, ftruncate, futex, io_submit,
            pread64, preadv, preadv2, pwrite64, pwritev, pwritev2, read as read_, readv, sendfile,
            sync_file_range, syncfs, write, writev,
        };
        let descriptor = self.arguments[0] as i32;
        let transfer = |offset, length, is_write| {
            About::Transfer(Transfer { descriptor, offset, length, is_write })
        };
        let [_, second, third, fourth, ..] = self.arguments;
        match Sysno::new(self.number) {
            Some(call @ (read_ | write)) => transfer(None, Some(third), call == write),
            Some(call @ (readv | writev)) => {
                transfer(None, vector_length(second, third, read), call == writev)
            }
            Some(call @ (pread64 | pwrite64)) => {
                transfer(Some(fourth), Some(third), call == pwrite64)
            }
            Some(call @ (preadv | pwritev)) => {
                transfer(Some(fourth), vector_length(second, third, read), call == pwritev)
            }
            Some(call @ (preadv2 | pwritev2)) => {
                // -1 stands for the descriptor's position.
                let offset = (fourth != u64::MAX).then_some(fourth);
                transfer(offset, vector_length(second, third, read), call == pwritev2)
            }
            Some(flock | fsync | fdatasync | sync_file_range | syncfs | fallocate | ftruncate) => {
                About::Descriptor(descriptor)
            }
            Some(sendfile) => About::Copy { to: descriptor, from: second as i32 },
            Some(copy_file_range) => About::Descriptor(third as i32),
            Some(futex) => About::Futex {
                address: self.arguments[0],
                is_lock: is_lock(second, third),
                is_shared: second & FUTEX_PRIVATE == 0,
            },
            Some(io_submit) => first_of_submitted(third, read).unwrap_or(About::Nothing),
            _ => About::Nothing,
        }
    }
}

/// The flag of an operation on a futex of one process.
const FUTEX_PRIVATE: u64 = 128;

/// Whether a futex is used as a lock, by operation and expected value. glibc and Rust's std mark a
/// held lock with waiters by the value 2. FUTEX_LOCK_PI and LOCK_PI2 exist only for locks.
fn is_lock(operation: u64, value: u64) -> bool {
    const REALTIME: u64 = 256;
    match operation & !(FUTEX_PRIVATE | REALTIME) {
        // FUTEX_WAIT, FUTEX_WAIT_BITSET.
        0 | 9 => value as u32 == 2,
        6 | 13 => true,
        _ => false,
    }
}

fn vector_length(address: u64, entries: u64, read: &ReadMemory) -> Option<u64> {
    let mut vector = [0; VECTOR_MAX as usize * IOVEC_BYTES];
    let vector = &mut vector[..entries.min(VECTOR_MAX) as usize * IOVEC_BYTES];
    let is_whole = entries <= VECTOR_MAX && read(address, vector);
    is_whole.then(|| {
        vector.chunks(IOVEC_BYTES).map(|entry| word(entry, 8)).fold(0, u64::saturating_add)
    })
}

/// The first request of an io_submit; the others are mostly of the same kind.
fn first_of_submitted(list: u64, read: &ReadMemory) -> Option<About> {
    let mut address = [0; 8];
    let mut request = [0; IOCB_BYTES];
    let is_whole = read(list, &mut address) && read(word(&address, 0), &mut request);
    is_whole.then(|| parse_iocb(&request))
}

fn parse_iocb(request: &[u8; IOCB_BYTES]) -> About {
    let opcode = u16::from_ne_bytes([request[16], request[17]]);
    let descriptor = word(request, 20) as u32 as i32;
    let (length, offset) = (word(request, 32), word(request, 40));
    match opcode {
        // IOCB_CMD_PREAD, PWRITE.
        0 | 1 => About::Transfer(Transfer {
            descriptor,
            offset: Some(offset),
            length: Some(length),
            is_write: opcode == 1,
        }),
        // PREADV, PWRITEV, whose vectors are not read.
        7 | 8 => About::Transfer(Transfer {
            descriptor,
            offset: Some(offset),
            length: None,
            is_write: opcode == 8,
        }),
        _ => About::Descriptor(descriptor),
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no_memory(_: u64, _: &mut [u8]) -> bool {
        false
    }

    fn about(call: Sysno, arguments: [u64; 6]) -> About {
        RawCall { number: call.id() as usize, arguments }.about(&no_memory)
    }

    #[test]
    fn calls_have_names() {
        assert_eq!(
            RawCall { number: Sysno::pwritev2.id() as usize, arguments: [0; 6] }.name(),
            "pwritev2"
        );
        assert_eq!(RawCall { number: 5000, arguments: [0; 6] }.name(), "syscall 5000");
    }

    #[test]
    fn places_of_transfers() {
        let transfer = |offset, length, is_write| {
            About::Transfer(Transfer { descriptor: 3, offset, length, is_write })
        };
        let at_8192 = [3, 0x7000, 4096, 8192, 0, 0];
        assert_eq!(about(Sysno::pwrite64, at_8192), transfer(Some(8192), Some(4096), true));
        assert_eq!(about(Sysno::pread64, at_8192), transfer(Some(8192), Some(4096), false));
        assert_eq!(about(Sysno::write, at_8192), transfer(None, Some(4096), true));
        assert_eq!(
            about(Sysno::pwritev2, [3, 0x7000, 1, u64::MAX, 0, 2]),
            transfer(None, None, true)
        );
        assert_eq!(about(Sysno::fdatasync, [3, 0, 0, 0, 0, 0]), About::Descriptor(3));
        assert_eq!(about(Sysno::nanosleep, at_8192), About::Nothing);
        assert_eq!(about(Sysno::io_submit, at_8192), About::Nothing);
    }

    #[test]
    fn locks_among_futexes() {
        // With the private flag, for both waits: the value decides.
        for (operation, value, is_lock, is_shared) in [
            (128, 2, true, false),
            (128, 1, false, false),
            (128 | 256 | 9, 2, true, false),
            (6, 0, true, true),
            (129, 2, false, false),
        ] {
            let expected = About::Futex { address: 0x5000, is_lock, is_shared };
            assert_eq!(about(Sysno::futex, [0x5000, operation, value, 0, 0, 0]), expected);
        }
    }

    #[test]
    fn vectors_are_added_up() {
        let read = |address: u64, bytes: &mut [u8]| {
            assert_eq!((address, bytes.len()), (0x7000, 32));
            bytes[8..16].copy_from_slice(&4096u64.to_ne_bytes());
            bytes[24..32].copy_from_slice(&512u64.to_ne_bytes());
            true
        };
        assert_eq!(vector_length(0x7000, 2, &read), Some(4608));
        assert_eq!(vector_length(0x7000, VECTOR_MAX + 1, &|_, _| panic!("not read")), None);
    }

    #[test]
    fn requests_of_libaio() {
        let read = |address: u64, bytes: &mut [u8]| {
            if address == 0x100 {
                bytes.copy_from_slice(&0x200u64.to_ne_bytes());
            } else {
                assert_eq!(address, 0x200);
                bytes[16..18].copy_from_slice(&1u16.to_ne_bytes());
                bytes[20..24].copy_from_slice(&7u32.to_ne_bytes());
                bytes[32..40].copy_from_slice(&4096u64.to_ne_bytes());
                bytes[40..48].copy_from_slice(&65536u64.to_ne_bytes());
            }
            true
        };
        let call =
            RawCall { number: Sysno::io_submit.id() as usize, arguments: [9, 1, 0x100, 0, 0, 0] };
        let write =
            Transfer { descriptor: 7, offset: Some(65536), length: Some(4096), is_write: true };
        assert_eq!(call.about(&read), About::Transfer(write));
    }
}
