//! Streams on the simulated disk, beside a list of bytes.

use super::*;
use crate::api::options::OpenOptions;
use crate::api::queue::QueueOptions;
use crate::api::reactor::LocalReactor;
use crate::api::sim::{self, Disk};
use crate::backend::sim::Call;
use crate::error::{Error, ErrorKind};
use crate::rules::policy::Growth;

const SEEDS: u64 = 16;

fn options(random: &mut fastrand::Rng) -> OpenOptions {
    let growth = [Growth::None, Growth::Unwritten, Growth::Zeroed][random.usize(..3)];
    let mut options = OpenOptions::new();
    options.write(true).create(true).growth(growth);
    options
}

/// The length of a piece: short, around a chunk, or several chunks.
fn any_len(random: &mut fastrand::Rng) -> usize {
    match random.u8(..8) {
        0 => CHUNK_BYTES - 1 + random.usize(..3),
        1 => random.usize(..3 * CHUNK_BYTES),
        2..=4 => random.usize(..10_000),
        _ => random.usize(..100),
    }
}

fn write_at_random(writer: &mut Writer, model: &mut Vec<u8>, random: &mut fastrand::Rng) {
    for _ in 0..1 + random.u64(..20) {
        match random.u8(..8) {
            0 => writer.flush().unwrap(),
            1 => {
                let to = random.u64(..=model.len() as u64 + 20_000);
                assert_eq!(writer.seek(SeekFrom::Start(to)).unwrap(), to);
            }
            2 => {
                let back = random.u64(..=model.len() as u64);
                let to = writer.seek(SeekFrom::End(-(back as i64))).unwrap();
                assert_eq!(to, model.len() as u64 - back);
            }
            _ => {
                let data: Vec<_> = (0..any_len(random)).map(|_| random.u8(1..)).collect();
                let at = writer.position() as usize;
                writer.write_all(&data).unwrap();
                if !data.is_empty() {
                    model.resize(model.len().max(at + data.len()), 0);
                    model[at..at + data.len()].copy_from_slice(&data);
                }
            }
        }
    }
}

fn read_at_random(reader: &mut Reader, model: &[u8], random: &mut fastrand::Rng) {
    for _ in 0..1 + random.u64(..20) {
        if random.u8(..6) == 0 {
            let to = random.u64(..=model.len() as u64 + 5000);
            assert_eq!(reader.seek(SeekFrom::Start(to)).unwrap(), to);
        }
        let at = reader.position() as usize;
        let rest = model.get(at..).unwrap_or(&[]);
        let mut into = vec![0; any_len(random)];
        let mut read = 0;
        while read < into.len() {
            match reader.read(&mut into[read..]).unwrap() {
                0 => break,
                count => read += count,
            }
        }
        assert_eq!(read, into.len().min(rest.len()), "at {at} of {}", model.len());
        assert!(into[..read] == rest[..read], "at {at} of {}", model.len());
    }
}

#[test]
fn a_stream_holds_what_was_written() {
    for seed in 0..SEEDS {
        sim::run(seed, || {
            let mut random = fastrand::Rng::with_seed(seed);
            let disk = Disk::new(seed);
            let (options, mut model) = (options(&mut random), Vec::new());
            for _ in 0..3 {
                let mut writer = Writer::new(disk.open(&options, "a").unwrap());
                write_at_random(&mut writer, &mut model, &mut random);
                let file = match random.bool() {
                    true => writer.finish().unwrap(),
                    false => {
                        drop(writer);
                        disk.open(&options, "a").unwrap()
                    }
                };
                assert_eq!(file.len().unwrap(), model.len() as u64);
                let mut reader = Reader::new(file);
                read_at_random(&mut reader, &model, &mut random);
                drop(reader);
                assert!(disk.content("a").unwrap() == model, "seed {seed}");
            }
        });
    }
}

#[test]
fn a_finished_stream_is_stable() {
    for seed in 0..SEEDS {
        sim::run(seed, || {
            let mut random = fastrand::Rng::with_seed(seed);
            let disk = Disk::new(seed);
            let options = options(&mut random);
            let mut writer = Writer::new(disk.open(&options, "a").unwrap());
            let mut model = Vec::new();
            write_at_random(&mut writer, &mut model, &mut random);
            let file = writer.finish().unwrap();
            let after = disk.crash();
            drop(file);
            let after_crash = after.open(&options, "a").unwrap();
            let mut content = Vec::new();
            Reader::new(after_crash).read_to_end(&mut content).unwrap();
            // With zeros ahead, only the program knows the end.
            assert!(content[..model.len()] == model, "seed {seed}");
            assert!(content[model.len()..].iter().all(|byte| *byte == 0), "seed {seed}");
        });
    }
}

#[test]
fn a_failed_write_fails_the_rest_of_the_stream() {
    for nth in 0..4 {
        let disk = Disk::new(1);
        let mut options = OpenOptions::new();
        let file = disk.open(options.write(true).create(true), "a").unwrap();
        let mut writer = Writer::new(file);
        disk.fail(Call::Write, nth, libc::EIO);
        let failed = writer.write_all(&vec![7; 6 * CHUNK_BYTES]).and_then(|()| writer.flush());
        let number =
            |error: io::Error| error.get_ref().unwrap().downcast_ref::<Error>().unwrap().errno();
        assert_eq!(number(failed.unwrap_err()), libc::EIO, "write {nth}");
        disk.heal();
        for _ in 0..2 {
            assert_eq!(number(writer.write_all(b"more").unwrap_err()), libc::EIO);
            assert_eq!(number(writer.flush().unwrap_err()), libc::EIO);
            assert_eq!(number(writer.rewind().unwrap_err()), libc::EIO);
        }
        assert_eq!(number(writer.finish().unwrap_err()), libc::EIO);
    }
}

#[test]
fn a_reader_follows_a_file_that_grows_and_shrinks() {
    let disk = Disk::new(1);
    let file = disk.open(OpenOptions::new().write(true).create(true), "a").unwrap();
    let mut reader = Reader::new(file.try_clone().unwrap());
    let mut into = Vec::new();
    let mut rest = |reader: &mut Reader| {
        into.clear();
        reader.read_to_end(&mut into).unwrap();
        into.clone()
    };
    assert_eq!(rest(&mut reader), []);
    file.append(&[1; 700]).unwrap();
    assert_eq!(rest(&mut reader), [1; 700]);
    assert_eq!(rest(&mut reader), []);
    file.append(&[2; 5000]).unwrap();
    assert_eq!(rest(&mut reader), [2; 5000]);
    file.set_len(100).unwrap();
    assert_eq!(rest(&mut reader), []);
    file.append(&[3; 6000]).unwrap();
    assert_eq!(rest(&mut reader), [3; 400]);
    reader.seek(SeekFrom::Start(90)).unwrap();
    assert_eq!(rest(&mut reader)[..20], [[1; 10], [3; 10]].concat());
}

#[test]
fn a_failed_read_leaves_the_position() {
    let disk = Disk::new(1);
    disk.put("a", &[5; 3 << 20]);
    let mut reader = Reader::new(disk.open(&OpenOptions::new(), "a").unwrap());
    for nth in [0, 1] {
        disk.fail(Call::Read, nth, libc::EIO);
        let mut all = Vec::new();
        let error = reader.read_to_end(&mut all).unwrap_err();
        let error = error.get_ref().unwrap().downcast_ref::<Error>().unwrap();
        assert_eq!(*error.kind(), ErrorKind::Os(libc::EIO));
        reader.read_to_end(&mut all).unwrap();
        assert!(all == [5; 3 << 20], "read {nth}");
        reader.rewind().unwrap();
    }
}

#[test]
fn a_seek_out_of_range_is_refused() {
    let disk = Disk::new(1);
    disk.put("a", &[5; 100]);
    let mut reader = Reader::new(disk.open(&OpenOptions::new(), "a").unwrap());
    let error = reader.seek(SeekFrom::End(-101)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert_eq!(reader.seek(SeekFrom::Start(u64::MAX)).unwrap(), u64::MAX);
    assert_eq!(reader.read(&mut [0; 10]).unwrap(), 0);
    let error = reader.seek(SeekFrom::Current(1)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    let mut writer = Writer::new(disk.open(OpenOptions::new().write(true), "a").unwrap());
    writer.seek(SeekFrom::Start(u64::MAX - 1)).unwrap();
    writer.write_all(&[1; 2]).and_then(|()| writer.flush()).unwrap_err();
}

/// The first write waits for the preparation of the file. Those behind it left a gap, which is
/// refused over recycled space.
#[test]
fn a_stream_from_inside_a_block_leaves_no_gap() {
    let disk = Disk::new(1);
    let file = disk.open(OpenOptions::new().write(true).create(true), "a").unwrap();
    file.append(&vec![1; 12 * CHUNK_BYTES]).unwrap();
    file.recycle().unwrap();
    file.append(&[2; 100]).unwrap();
    let mut writer = Writer::new(file);
    writer.seek(SeekFrom::End(0)).unwrap();
    writer.write_all(&vec![3; 10 * CHUNK_BYTES]).unwrap();
    let file = writer.finish().unwrap();
    assert_eq!(file.len().unwrap(), 100 + 10 * CHUNK_BYTES as u64);
    assert!(disk.content("a").unwrap()[100..100 + 10 * CHUNK_BYTES].iter().all(|it| *it == 3));
}

/// A dropped future had left the target of its seek, which a later seek moved to.
#[test]
fn a_seek_that_was_begun_comes_before_the_next_write() {
    let disk = Disk::new(1);
    let mut writer =
        Writer::new(disk.open(OpenOptions::new().write(true).create(true), "a").unwrap());
    writer.write_all(&[1; 100]).unwrap();
    writer.writing_mut().start_seek(SeekFrom::Start(10)).unwrap();
    writer.write_all(&[2; 10]).unwrap();
    assert_eq!(writer.stream_position().unwrap(), 20);
    writer.finish().unwrap().close().unwrap();
    let expected = [&[1; 10][..], &[2; 10], &[1; 80]].concat();
    assert_eq!(disk.content("a").unwrap(), expected);
}

/// The thread that waits drives the reactor. The calls of std slept for ever.
#[test]
fn a_stream_of_a_local_reactor_fails_where_it_slept() {
    let disk = Disk::new(1);
    let reactor = LocalReactor::new(&QueueOptions::new());
    let file = disk.open(OpenOptions::new().write(true).create(true), "a").unwrap();
    let mut writer = Writer::new(reactor.attach(file.try_clone().unwrap()));
    writer.write_all(&[1; 100]).unwrap();
    let error = writer.flush().unwrap_err();
    assert!(error.to_string().contains("cannot wait for the reactor"), "{error}");
    writer.seek(SeekFrom::Start(0)).unwrap_err();
    assert_eq!(writer.position(), 100);
    let write = poll_fn(|context| writer.writing_mut().poll_write(context, &[2; 10]));
    assert_eq!(reactor.block_on(write).unwrap(), 10);
    reactor.block_on(writer.finish_async()).unwrap();
    assert_eq!(disk.content("a").unwrap()[..110], [[1; 100].as_slice(), &[2; 10]].concat());
    let mut reader = Reader::new(reactor.attach(file));
    reader.read(&mut [0; 10]).unwrap_err();
    let mut byte = [0; 1];
    let read = poll_fn(|context| reader.poll_read(context, &mut byte));
    assert_eq!((reactor.block_on(read).unwrap(), byte), (1, [1]));
}

#[test]
fn a_writer_is_finished_by_a_task() {
    let disk = Disk::new(1);
    let file = disk.open(OpenOptions::new().write(true).create(true), "a").unwrap();
    let mut writer = Writer::new(file);
    writer.write_all(&[7; 3 * CHUNK_BYTES]).unwrap();
    let _file = smol::block_on(writer.finish_async()).unwrap();
    let content = disk.crash().content("a").unwrap();
    assert!(content.starts_with(&[7; 3 * CHUNK_BYTES]));
}

/// The documentation promised reads into `Bytes`, which is not writable.
#[test]
fn memory_of_the_crate_bytes_is_written_and_filled() {
    let disk = Disk::new(1);
    let file = disk.open(OpenOptions::new().write(true).create(true), "a").unwrap();
    let file = AsyncFile::from(file);
    smol::block_on(async {
        let (appended, data) = file.append(bytes::Bytes::from_static(b"0123456789")).await;
        assert_eq!((appended.unwrap(), &data[..]), (0, &b"0123456789"[..]));
        let (read, into) = file.read_at(bytes::BytesMut::zeroed(4), 3).await;
        assert_eq!((read.unwrap(), &into[..]), (4, &b"3456"[..]));
        file.close().await.unwrap();
    });
}

/// The thread that drops it drives the reactor, and slept for ever.
#[test]
fn a_writer_of_a_local_reactor_can_be_dropped() {
    let disk = Disk::new(1);
    let reactor = LocalReactor::new(&QueueOptions::new());
    let file = disk.open(OpenOptions::new().write(true).create(true), "a").unwrap();
    let mut writer = Writer::new(reactor.attach(file));
    let mut context = Context::from_waker(Waker::noop());
    assert!(writer.writing_mut().poll_write(&mut context, &[1; 100]).is_ready());
    drop(writer);
    let file = disk.open(OpenOptions::new().write(true), "a").unwrap();
    let mut writer = Writer::new(reactor.attach(file));
    assert!(writer.writing_mut().poll_write(&mut context, &[2; 100]).is_ready());
    reactor
        .block_on(std::future::poll_fn(|context| writer.writing_mut().poll_flush(context)))
        .unwrap();
    drop(writer);
    assert_eq!(disk.content("a").unwrap(), [2; 100]);
}

/// A seek and a short read cost three transfers.
#[test]
fn a_short_read_costs_one_transfer() {
    let disk = Disk::new(1);
    disk.put("a", &[5; 8 << 20]);
    let mut reader = Reader::new(disk.open(&OpenOptions::new(), "a").unwrap());
    for position in [0, 5 << 20, 3 << 20] {
        reader.seek(SeekFrom::Start(position)).unwrap();
        reader.read_exact(&mut [0; 100]).unwrap();
        assert_eq!(reader.0.in_flight(), 0);
    }
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.len(), (5 << 20) - 100);
}
