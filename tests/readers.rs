//! Readers beside a writer in another process or in this one, at chosen moments. This program
//! replaces pread(2), which the library calls.

mod common;

use common::*;
use dioxide::{Buffer, Durability, File, Growth, Queue};
use dioxide_testkit::child::{self, Acks, Child};
use dioxide_testkit::lab::{Fs, TestDir};
use dioxide_testkit::trials::{Trial, TrialResult, lab_trials_where};
use std::cell::{Cell, OnceCell, RefCell};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Instant;

const BLOCKS: u64 = 16;

/// The next step of the writing process.
#[derive(Clone, Copy)]
enum Order {
    /// Truncate to 0, and append one block: the file grows again.
    Shorten = 0,
    /// Append up to the previous length.
    Fill = 1,
    /// Append enough blocks for a growth.
    Grow = 2,
    /// Recycle the file, and append one block.
    Recycle = 3,
    Close = 4,
    Open = 5,
}

impl Order {
    const ALL: [Self; 6] =
        [Self::Shorten, Self::Fill, Self::Grow, Self::Recycle, Self::Close, Self::Open];
}

/// A child that writes args[0], with orders from the FIFO args[1].
fn write_as_asked(acks: &Acks, args: &[String]) {
    let options = writable().durability(Durability::EveryWrite).growth_cap(64 << 10).clone();
    let open = || options.open(&args[0]).expect("it opens");
    let mut file = Some(open());
    let mut orders = fs::File::open(&args[1]).expect("the parent opens it as well");
    let append = |file: &File, blocks| assert!(append_many(file, 1, blocks).len() as u64 == blocks);
    append(file.as_ref().expect("it is open"), BLOCKS);
    acks.send([0; 3]);
    let mut order = [0];
    while orders.read(&mut order).expect("a FIFO can be read") == 1 {
        match (Order::ALL[usize::from(order[0])], &file) {
            (Order::Shorten, Some(file)) => {
                file.set_len(0).expect("it can be truncated");
                append(file, 1);
            }
            (Order::Fill, Some(file)) => {
                append(file, BLOCKS - file.len().expect("it is ours") / BLOCK_BYTES)
            }
            (Order::Grow, Some(file)) => append(file, 16),
            (Order::Recycle, Some(file)) => {
                file.recycle().expect("it grows");
                append(file, 1);
            }
            (Order::Close, Some(_)) => file.take().expect("it is open").close().expect("it closes"),
            (Order::Open, None) => file = Some(open()),
            _ => panic!("this order has no sense now"),
        }
        acks.send([0; 3]);
    }
}

/// The parent's side of the writing process.
struct Writer {
    child: Child,
    orders: fs::File,
    carried_out: usize,
}

impl Writer {
    fn start(path: &Path) -> Result<Self, dioxide_testkit::trials::Failed> {
        let fifo = path.with_extension("orders");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )?;
        // For reading as well, so that the open does not wait for the child.
        let orders = fs::OpenOptions::new().read(true).write(true).open(&fifo)?;
        let mut child =
            child::spawn("write_as_asked", &[path.to_string_lossy(), fifo.to_string_lossy()])?;
        child.wait_for_acks(1, PATIENCE)?;
        Ok(Self { child, orders, carried_out: 1 })
    }

    fn carry_out(&mut self, orders: &[Order]) {
        for order in orders {
            self.orders.write_all(&[*order as u8]).expect("the FIFO is open");
            self.carried_out += 1;
            self.child.wait_for_acks(self.carried_out, PATIENCE).expect("the child carries it out");
        }
    }
}

/// Orders around each pread(2) of this thread: before it, and after it.
struct Around {
    writer: Writer,
    before: Vec<Order>,
    behind: Vec<Order>,
    /// The number of calls with orders.
    calls: usize,
}

thread_local! {
    /// What this thread does before its next call.
    static BEFORE: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
    static AROUND: RefCell<Option<Around>> = const { RefCell::new(None) };
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

fn carry_out(of: fn(&Around) -> &Vec<Order>) {
    AROUND.with_borrow_mut(|around| {
        if let Some(around) = around.as_mut().filter(|around| around.calls > 0) {
            let orders = of(around).clone();
            around.writer.carry_out(&orders);
        }
    });
}

/// Replaces the function of the C library.
///
/// # Safety
///
/// As pread(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pread(fd: i32, into: *mut libc::c_void, len: usize, offset: i64) -> isize {
    carry_out(|around| &around.before);
    if let Some(deed) = BEFORE.take() {
        deed();
    }
    // SAFETY: as the caller promises.
    let read = unsafe { libc::syscall(libc::SYS_pread64, fd, into, len, offset) } as isize;
    carry_out(|around| &around.behind);
    CALLS.set(CALLS.get() + 1);
    AROUND.with_borrow_mut(|around| {
        if let Some(around) = around {
            around.calls = around.calls.saturating_sub(1);
        }
    });
    read
}

/// Reads the initial content, with these orders around the first `calls` calls of pread. Returns
/// the result, the number of calls, and the number of blocks of zeros in it.
fn read_with(
    dir: &Path,
    (before, behind): (&[Order], &[Order]),
    calls: usize,
) -> Result<(dioxide::Result<usize>, usize, usize), dioxide_testkit::trials::Failed> {
    let path = dir.join("log");
    let writer = Writer::start(&path)?;
    let reader = File::open(&path)?;
    let mut into = Buffer::zeroed((BLOCKS * BLOCK_BYTES) as usize);
    into.fill(0xEE);
    CALLS.set(0);
    AROUND.set(Some(Around { writer, before: before.to_vec(), behind: behind.to_vec(), calls }));
    let read = reader.read_at(&mut into, 0);
    drop(AROUND.take());
    let len = read.as_ref().copied().unwrap_or(0);
    let zeros =
        into[..len].chunks(BLOCK).filter(|block| block.iter().all(|byte| *byte == 0)).count();
    Ok((read, CALLS.get(), zeros))
}

/// Shortens and refills the file around every read: no result is valid.
const SHORTENED: (&[Order], &[Order]) = (&[Order::Shorten], &[Order::Fill]);

/// Regression: after three changes of the marker the read returned zeros of grown space.
fn a_reader_returns_no_zeros_of_a_file_that_is_truncated_all_the_time(dir: TestDir) -> TrialResult {
    let (read, calls, zeros) = read_with(&dir, SHORTENED, usize::MAX)?;
    assert_eq!((read.map_err(|error| error.errno()), zeros), (Err(libc::EAGAIN), 0));
    assert!(calls > 10, "it gave up after {calls} reads");
    Ok(())
}

fn a_reader_goes_on_when_the_file_is_truncated_no_more(dir: TestDir) -> TrialResult {
    let (read, calls, zeros) = read_with(&dir, SHORTENED, 7)?;
    assert_eq!((read?, zeros, calls), (BLOCKS as usize * BLOCK, 0, 8));
    Ok(())
}

/// Its marker promises nothing yet after the recycle, and the old content is gone.
fn nothing_of_a_recycled_file_is_returned(dir: TestDir) -> TrialResult {
    let (read, ..) = read_with(&dir, (&[Order::Recycle], &[Order::Fill]), 1)?;
    assert_eq!(read?, 0);
    Ok(())
}

/// Growth also changes the marker, but needs no second read.
fn a_file_that_only_grows_is_read_once(dir: TestDir) -> TrialResult {
    let (read, calls, zeros) = read_with(&dir, (&[Order::Grow], &[Order::Grow]), usize::MAX)?;
    assert_eq!((read?, zeros, calls), (BLOCKS as usize * BLOCK, 0, 1));
    Ok(())
}

/// With a marker only before or after the read, and a reopen in between.
fn a_file_that_is_closed_and_opened_meanwhile_is_read_again(dir: TestDir) -> TrialResult {
    use Order::*;
    let lives: [(&[Order], &[Order]); 3] = [
        (&[Close, Open, Shorten], &[Fill]),
        (&[Shorten], &[Fill, Close]),
        (&[Close, Open, Shorten], &[Fill, Close]),
    ];
    for (number, life) in lives.into_iter().enumerate() {
        let dir = dir.join(number.to_string());
        fs::create_dir(&dir)?;
        let (read, calls, zeros) = read_with(&dir, life, 1)?;
        assert_eq!((read?, zeros, calls), (BLOCKS as usize * BLOCK, 0, 2), "life {number}");
    }
    Ok(())
}

/// The file has no marker before or after the read: only its change time shows that it had one.
fn a_whole_life_of_a_file_within_a_read_is_noticed(dir: TestDir) -> TrialResult {
    use Order::*;
    let path = dir.join("log");
    let mut writer = Writer::start(&path)?;
    writer.carry_out(&[Close]);
    let reader = File::open(&path)?;
    for _ in 0..10 {
        let mut into = Buffer::zeroed((BLOCKS * BLOCK_BYTES) as usize);
        CALLS.set(0);
        let life =
            Around { writer, before: vec![Open, Shorten], behind: vec![Fill, Close], calls: 1 };
        AROUND.set(Some(life));
        let read = reader.read_at(&mut into, 0)?;
        let whole = into[..read].chunks(BLOCK).all(|block| block.iter().any(|byte| *byte != 0));
        assert_eq!((read, whole, CALLS.get()), (BLOCKS as usize * BLOCK, true, 2));
        writer = AROUND.take().expect("it was put there").writer;
    }
    Ok(())
}

/// The kernel reads for a queue before the truncate, and the queue looks at the file after it.
/// Growth needs no second read.
fn a_read_of_a_queue_is_repeated_after_a_truncate(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    let mut writer = Writer::start(&path)?;
    let (reader, queue) = (File::open(&path)?, Queue::new(1));
    let room = BLOCKS * BLOCK_BYTES;
    for orders in [&[Order::Shorten][..], &[Order::Fill, Order::Grow]] {
        let (before, into) = (reader.len()?, Buffer::zeroed(room as usize));
        queue.read_at(&reader, into, 0, 0).map_err(|error| error.to_string())?;
        queue.submit();
        writer.carry_out(orders);
        let done = queue.reap(1).next().expect("it was submitted");
        let (read, into) = (done.result?, done.buffer.expect("reads have one"));
        assert_ne!(before.min(room), reader.len()?.min(room));
        assert_eq!(read, before.min(reader.len()?));
        assert!(into[..read as usize].chunks(BLOCK).all(|block| block != [0; BLOCK]));
    }
    Ok(())
}

/// The bytes that readers of this process find: the length, by a call, by a queue.
fn found(reader: &File, queue: &Queue) -> [u64; 3] {
    let mut into = Buffer::zeroed(2 * BLOCK);
    let read = reader.read_at(&mut into, 0).expect("it can be read");
    queue.read_at(reader, into, 0, 0).expect("there is room");
    let done = queue.reap(1).next().expect("it was submitted");
    [reader.len().expect("it has a length"), read as u64, done.result.expect("it can be read")]
}

const GROWTHS: [Growth; 2] = [Growth::Unwritten, Growth::None];

/// The file was opened for writing after a read began. The next attempt found whole blocks.
fn a_reader_in_the_process_of_the_writer_met_zeros_past_the_end(dir: TestDir) -> TrialResult {
    let path = dir.join("log");
    for growth in GROWTHS {
        fs::write(&path, [1; 100])?;
        let (reader, queue, writer) = (File::open(&path)?, Queue::new(1), Rc::new(OnceCell::new()));
        let open_and_append = {
            let (path, writer) = (path.clone(), writer.clone());
            move || {
                let file = writable().growth(growth).open(path).expect("it opens");
                file.append(&[2; 50]).expect("it can be appended to");
                writer.set(file).expect("it is opened once");
            }
        };
        queue.read_at(&reader, Buffer::zeroed(2 * BLOCK), 0, 0).map_err(|it| it.to_string())?;
        queue.submit();
        BEFORE.set(Some(Box::new(open_and_append)));
        let mut into = Buffer::zeroed(2 * BLOCK);
        assert_eq!(reader.read_at(&mut into, 0)?, 150, "{growth:?}");
        let done = queue.reap(1).next().expect("it was submitted");
        assert!([100, 150].contains(&done.result?), "{growth:?}");
        assert_eq!(found(&reader, &queue), [150; 3], "{growth:?}");
        Rc::into_inner(writer).and_then(OnceCell::into_inner).expect("it was opened").close()?;
    }
    Ok(())
}

/// A reader succeeds beside a program that writes without markers.
fn a_file_that_is_written_without_growth_is_read(dir: TestDir) -> TrialResult {
    let path = dir.join("plain");
    fs::write(&path, vec![1; BLOCK])?;
    let reader = File::open(&path)?;
    let writer = fs::OpenOptions::new().write(true).open(&path)?;
    let mut into = Buffer::zeroed(BLOCK);
    let (written, met, done) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| -> TrialResult {
        let writing = scope.spawn(|| {
            while !done.load(SeqCst) {
                writer.write_all_at(&[1], 17).expect("it can be written");
                written.fetch_add(1, SeqCst);
            }
        });
        let _over = Over(&done);
        let begun = Instant::now();
        while is_too_early(begun, met.load(SeqCst)) && !writing.is_finished() {
            let before = written.load(SeqCst);
            assert_eq!(reader.read_at(&mut into, 0)?, BLOCK);
            met.fetch_add(u64::from(written.load(SeqCst) > before), SeqCst);
        }
        Ok(())
    })?;
    assert!(met.load(SeqCst) > MET_MIN, "hardly a read met a write");
    assert!(into.iter().all(|byte| *byte == 1));
    Ok(())
}

fn trials() -> Vec<Trial> {
    let where_files_grow: &[LabTest] = named![
        a_reader_returns_no_zeros_of_a_file_that_is_truncated_all_the_time,
        a_reader_goes_on_when_the_file_is_truncated_no_more,
        a_file_that_only_grows_is_read_once,
        a_file_that_is_closed_and_opened_meanwhile_is_read_again,
        a_whole_life_of_a_file_within_a_read_is_noticed,
        a_read_of_a_queue_is_repeated_after_a_truncate,
        a_reader_in_the_process_of_the_writer_met_zeros_past_the_end,
        a_file_that_is_written_without_growth_is_read,
    ];
    let grown = where_files_grow
        .iter()
        .flat_map(|&(name, test)| lab_trials_where(name, Fs::grows_unwritten, test));
    let recycled = lab_trials_where(
        "nothing_of_a_recycled_file_is_returned",
        |fs| {
            if fs == Fs::Btrfs {
                Err("btrfs would not write into the old space")
            } else {
                fs.grows_unwritten()
            }
        },
        nothing_of_a_recycled_file_is_returned,
    );
    grown.chain(recycled).collect()
}

fn main() -> ExitCode {
    dioxide_testkit::run(&[("write_as_asked", write_as_asked)], trials)
}
