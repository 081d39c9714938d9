//! Compares the append rate of tasks with that of one queue with as many appends in flight.
//!
//! Run `tasks DIR [TASKS] [SECONDS] [ROUNDS]`. Appends are durable, of 4 KiB, to a scratch file
//! without a name. The two take turns, and each ratio is of one round.

use dioxide::{AsyncFile, Buffer, Durability, File, Growth, OpenOptions, Queue};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let dir = args.first().ok_or("which directory?")?;
    let number =
        |nth: usize, default: u64| args.get(nth).map_or(Ok(default), |arg| arg.parse::<u64>());
    let (tasks, seconds, rounds) = (number(1, 1024)? as usize, number(2, 2)?, number(3, 5)?);
    let time = Duration::from_secs(seconds);
    let mut ratios = Vec::new();
    for round in 0..rounds {
        let rate_of_queue = || queue(Path::new(dir), tasks, time);
        let rate_of_tasks = || tokio(Path::new(dir), tasks, time);
        // In turn, so that neither always runs first.
        let (queue, tasks) = match round % 2 {
            0 => (rate_of_queue()?, rate_of_tasks()?),
            _ => {
                let tasks = rate_of_tasks()?;
                (rate_of_queue()?, tasks)
            }
        };
        println!("queue {queue:9.0}/s   tasks {tasks:9.0}/s   {:.2}", tasks / queue);
        ratios.push(tasks / queue);
    }
    ratios.sort_by(f64::total_cmp);
    println!("tasks / queue: {:.2} (median)", ratios[ratios.len() / 2]);
    Ok(())
}

fn open(dir: &Path) -> dioxide::Result<File> {
    let growth = match std::env::var("GROWTH").as_deref() {
        Ok("zeroed") => Growth::Zeroed,
        _ => Growth::Unwritten,
    };
    OpenOptions::new().durability(Durability::EveryWrite).growth(growth).open_temporary(dir)
}

/// Appends per second, with the time of the close.
fn rate(began: Instant, appends: u64) -> f64 {
    appends as f64 / began.elapsed().as_secs_f64()
}

fn queue(dir: &Path, depth: usize, time: Duration) -> dioxide::Result<f64> {
    let file = open(dir)?;
    let queue = Queue::new(depth);
    let (began, mut appends) = (Instant::now(), 0);
    for tag in 0..depth {
        queue.append(&file, Buffer::zeroed(BLOCK), tag as u64).expect("there is room");
    }
    while queue.outstanding() > 0 {
        for done in queue.reap(1) {
            done.result?;
            appends += 1;
            if began.elapsed() < time {
                queue
                    .append(&file, done.buffer.expect("its own"), done.tag)
                    .expect("there is room");
            }
        }
    }
    drop(queue);
    show(&file);
    file.close()?;
    Ok(rate(began, appends))
}

fn tokio(dir: &Path, tasks: usize, time: Duration) -> Result<f64, Box<dyn Error>> {
    let threads = std::env::var("WORKERS").map_or(Ok(2), |workers| workers.parse())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).build()?;
    let file = Arc::new(AsyncFile::from(open(dir)?));
    let began = Instant::now();
    let appends = runtime.block_on(async {
        let append = |file: Arc<AsyncFile>| async move {
            let (mut block, mut appends) = (Buffer::zeroed(BLOCK), 0u64);
            while began.elapsed() < time {
                let (appended, memory) = file.append(block).await;
                appended?;
                block = memory;
                appends += 1;
            }
            Ok::<_, dioxide::Error>(appends)
        };
        let tasks: Vec<_> = (0..tasks).map(|_| tokio::spawn(append(file.clone()))).collect();
        let mut appends = 0;
        for task in tasks {
            appends += task.await.expect("no task panics")?;
        }
        Ok::<_, dioxide::Error>(appends)
    })?;
    let file = Arc::into_inner(file).expect("its tasks have ended");
    show(file.file());
    runtime.block_on(file.close())?;
    Ok(rate(began, appends))
}

fn show(file: &File) {
    let stats = file.stats();
    eprintln!(
        "{} appends, {:.1} a request, {:.1} a flush, {} waits",
        stats.appends,
        stats.appends as f64 / stats.requests as f64,
        stats.appends as f64 / (stats.flushes + stats.dsync_requests) as f64,
        stats.growth_waits
    );
}
