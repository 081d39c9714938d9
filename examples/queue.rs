//! Keeps 64 durable appends of one thread in flight: `cargo run --example queue`.

use dioxide::{Buffer, Durability, OpenOptions, Queue};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut options = OpenOptions::new();
    let log =
        options.write(true).create(true).durability(Durability::EveryWrite).open("queue.log")?;
    let queue = Queue::new(64);
    for tag in 0..64 {
        queue.append(&log, Buffer::zeroed(4096), tag)?; // the buffer moves in
    }
    while queue.outstanding() > 0 {
        for done in queue.reap(1) {
            println!("record {} is at {}", done.tag, done.result?); // the buffer is in done.buffer
        }
    }
    Ok(log.close()?)
}
