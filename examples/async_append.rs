//! Appends a durable record in a task, under any executor: `cargo run --example async_append`.

use dioxide::{AsyncFile, Durability, OpenOptions};

fn main() -> dioxide::Result<()> {
    smol::block_on(async {
        let mut options = OpenOptions::new();
        options.write(true).create(true).durability(Durability::EveryWrite);
        let log = AsyncFile::open(&options, "tasks.log").await?;
        let (offset, record) = log.append(b"a record".to_vec()).await; // the memory comes back
        println!("{} bytes are at {}", record.len(), offset?);
        log.close().await
    })
}
