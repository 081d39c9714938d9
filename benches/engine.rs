//! Measures the engine's own cost of an operation, on a file that takes no time and keeps nothing:
//! `cargo bench --features sim --bench engine`. Each operation has 4 KiB, unless it says more.
#![allow(missing_docs, reason = "the functions that criterion makes have none")]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use dioxide::{Buffer, Durability, File, OpenOptions, Queue, QueueOptions, sim};
use std::io::IoSlice;

const BLOCK_BYTES: usize = 4096;
/// The file is truncated at this length: files cannot grow much further.
const LEN_MAX_BYTES: u64 = 1 << 60;

fn file(durability: Durability) -> File {
    sim::null(OpenOptions::new().write(true).durability(durability))
        .expect("a file that keeps nothing")
}

const DURABILITIES: [(&str, Durability); 2] =
    [("on-sync", Durability::OnSync), ("every-write", Durability::EveryWrite)];

fn blocking(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("blocking");
    group.throughput(Throughput::Elements(1));
    let mut block = Buffer::zeroed(BLOCK_BYTES);
    for (name, durability) in DURABILITIES {
        let file = file(durability);
        group.bench_function(BenchmarkId::new("append", name), |bencher| {
            bencher.iter(|| file.append(&block).expect("nothing fails"));
        });
        group.bench_function(BenchmarkId::new("write_at", name), |bencher| {
            bencher.iter(|| file.write_at(&block, 0).expect("nothing fails"));
        });
    }
    let file = file(Durability::OnSync);
    file.append(&block).expect("nothing fails");
    group.bench_function("read_at", |bencher| {
        bencher.iter(|| file.read_at(&mut block, 0).expect("nothing fails"));
    });
    group.finish();
}

/// 1024 records of 100 bytes in one append: records that lie together, and records that do not.
fn batches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("batch");
    group.throughput(Throughput::Elements(1));
    let record = [b'r'; 100];
    let (slices, together) = ([IoSlice::new(&record); 1024], record.repeat(1024));
    let file = file(Durability::EveryWrite);
    group.bench_function("append", |bencher| {
        bencher.iter(|| file.append(&together).expect("nothing fails"));
    });
    group.bench_function("append_vectored", |bencher| {
        bencher.iter(|| file.append_vectored(&slices).expect("nothing fails"));
    });
    group.finish();
}

/// Queues an operation: with its file, its buffer, and a number.
type Queued = fn(&Queue, &File, Buffer, u64);

const APPEND: Queued = |queue, file, buffer, tag| {
    queue.append(file, buffer, tag).expect("there is room");
};
const WRITE: Queued = |queue, file, buffer, tag| {
    queue.write_at(file, buffer, tag * BLOCK_BYTES as u64, tag).expect("there is room");
};
const READ: Queued = |queue, file, buffer, tag| {
    queue.read_at(file, buffer, tag * BLOCK_BYTES as u64, tag).expect("there is room");
};

fn queued(criterion: &mut Criterion) {
    for depth in [1, 64, 1024] {
        let mut group = criterion.benchmark_group(format!("queue of {depth}"));
        group.throughput(Throughput::Elements(depth as u64));
        for (name, durability) in DURABILITIES {
            for (operation, queued) in [("append", APPEND), ("write_at", WRITE)] {
                group.bench_function(BenchmarkId::new(operation, name), |bencher| {
                    let file = file(durability);
                    turns(bencher, &file, depth, queued);
                });
            }
        }
        group.bench_function("read_at", |bencher| {
            let file = file(Durability::OnSync);
            turns(bencher, &file, depth, READ);
        });
        group.finish();
    }
}

/// Each iteration fills the queue with operations, and reaps them.
fn turns(bencher: &mut criterion::Bencher<'_>, file: &File, depth: usize, queued: Queued) {
    let queue = QueueOptions::new().depth(depth).open();
    let mut buffers: Vec<_> = (0..depth).map(|_| Buffer::zeroed(BLOCK_BYTES)).collect();
    for buffer in &buffers {
        file.append(buffer).expect("nothing fails");
    }
    bencher.iter(|| {
        for (tag, buffer) in buffers.drain(..).enumerate() {
            queued(&queue, file, buffer, tag as u64);
        }
        for done in queue.reap(depth) {
            done.result.expect("nothing fails");
            buffers.extend(done.buffer);
        }
        if file.len().expect("it is open") > LEN_MAX_BYTES {
            file.set_len((depth * BLOCK_BYTES) as u64).expect("nothing fails");
        }
    });
}

criterion_group!(benches, blocking, batches, queued);
criterion_main!(benches);
