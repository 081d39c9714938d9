//! Appends one durable record to a file: `cargo run --example append`.

use dioxide::{Durability, OpenOptions};

fn main() -> dioxide::Result<()> {
    let log = OpenOptions::new()
        .write(true)
        .create(true)
        .durability(Durability::EveryWrite)
        .open("records.log")?;
    let offset = log.append(b"a record of any length\n")?; // stable on return
    println!("the record is at {offset}");
    log.close()
}
