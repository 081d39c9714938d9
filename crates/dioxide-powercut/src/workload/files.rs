//! Many files that share flushes: half of them with a thread each, the others on one queue.
//!
//! Each thread is in a cgroup of its own, as in [`shared`](crate::shared).

use super::{Name, Player, poison};
use crate::BLOCK;
use crate::commits::Commits;
use crate::mark::Act;
use crate::shared::enter_cgroup;
use dioxide::{Durability, File, Growth, Queue};
use std::path::Path;
use std::thread;

/// Files with a thread each. As many more are on the queue.
const THREADS: usize = 8;

/// Number of files.
pub(super) const FILES: u64 = 2 * THREADS as u64;

/// More records for each file than a thread of a log writes: one thread writes each file.
const RECORDS: u64 = 3;

/// Steps of growth in [`append_between_commits`]: almost each record needs one.
const STEP_BYTES: u64 = 4 * BLOCK as u64;

pub(super) fn append_unwritten(players: &mut [Player<'_>], cgroups: Option<&Path>) {
    let _ = append(players, cgroups, Growth::Unwritten);
}

pub(super) fn append_zeroed(players: &mut [Player<'_>], cgroups: Option<&Path>) {
    let _ = append(players, cgroups, Growth::Zeroed);
}

pub(super) fn append_between_commits(players: &mut [Player<'_>], cgroups: Option<&Path>) {
    between_commits(players, cgroups, Growth::Unwritten);
}

pub(super) fn append_zeroed_between_commits(players: &mut [Player<'_>], cgroups: Option<&Path>) {
    between_commits(players, cgroups, Growth::Zeroed);
}

/// All files grow in small steps, and commits are forced between these.
fn between_commits(players: &mut [Player<'_>], cgroups: Option<&Path>, growth: Growth) {
    let commits = Commits::start(players[0].dir, players[0].seed).expect("the calls are filtered");
    players.iter_mut().for_each(|player| player.growth_cap = Some(STEP_BYTES));
    let shared = append(players, cgroups, growth);
    assert!(commits.between_steps() > FILES, "too few commits to test anything");
    assert!(shared > FILES, "the files shared {shared} flushes: too few to test anything");
}

/// Returns the number of shared flushes.
fn append(players: &[Player<'_>], cgroups: Option<&Path>, growth: Growth) -> u64 {
    let (own, queued) = players.split_at(THREADS);
    thread::scope(|scope| {
        let threads = (0..).zip(own).map(|(thread, player)| {
            scope.spawn(move || {
                enter_cgroup(cgroups, thread);
                // Some make records durable by a flush of their own.
                match thread % 4 {
                    3 => append_then_sync(player, growth),
                    _ => append_durably(player, growth),
                }
            })
        });
        let mut threads: Vec<_> = threads.collect();
        threads.push(scope.spawn(move || {
            enter_cgroup(cgroups, THREADS as u64);
            append_by_queue(queued, growth)
        }));
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    })
}

/// Closes a file, and returns the number of its shared flushes.
fn close(file: File) -> u64 {
    let shared = file.stats().flushes_shared;
    file.close().expect("it closes");
    shared
}

fn append_durably(player: &Player<'_>, growth: Growth) -> u64 {
    let file = player.open(Durability::EveryWrite, growth);
    let mut random = player.random(0);
    for number in 0..player.records * RECORDS {
        player.append_durably(&file, Name { writer: 0, number }, 1 + random.below(3));
    }
    close(file)
}

fn append_then_sync(player: &Player<'_>, growth: Growth) -> u64 {
    let file = player.open(Durability::OnSync, growth);
    let mut random = player.random(0);
    for first in (0..player.records * RECORDS).step_by(3) {
        let names = (first..first + 3).map(|number| Name { writer: 0, number });
        let placed: Vec<_> =
            names.map(|name| (name, player.append(&file, name, 1 + random.below(3)))).collect();
        file.sync_data().expect("it syncs");
        placed.into_iter().for_each(|(name, offset)| player.mark(Act::Durable(name, offset)));
    }
    close(file)
}

/// One record of each file is in flight. A file whose record is reaped gets the next one.
fn append_by_queue(players: &[Player<'_>], growth: Growth) -> u64 {
    let files: Vec<File> =
        players.iter().map(|player| player.open(Durability::EveryWrite, growth)).collect();
    let (queue, mut random) = (Queue::new(files.len()), players[0].random(0));
    let mut numbers = vec![0; files.len()];
    let append = |nth: usize, number, blocks| {
        let name = Name { writer: 0, number };
        let record = super::record(name, blocks);
        players[nth].mark(Act::Append(name, record.len() as u64));
        queue.append(&files[nth], record, nth as u64).expect("there is room");
    };
    (0..files.len()).for_each(|nth| append(nth, 0, 1 + random.below(3)));
    while queue.outstanding() > 0 {
        let reaped: Vec<_> = queue.reap(1).collect();
        for done in reaped {
            let (nth, offset) = (done.tag as usize, done.result.expect("there is space"));
            players[nth].mark(Act::Durable(Name { writer: 0, number: numbers[nth] }, offset));
            poison(done.buffer);
            numbers[nth] += 1;
            if numbers[nth] < players[nth].records * RECORDS {
                append(nth, numbers[nth], 1 + random.below(3));
            }
        }
    }
    files.into_iter().map(close).sum()
}
