//! Shows the state in which a crash left a file: `cargo run --example recover -- FILE`.

use dioxide::Recover;

fn main() -> dioxide::Result<()> {
    let path = std::env::args_os().nth(1).expect("usage: recover FILE");
    // Changes nothing. Recover::Truncate would truncate the file.
    let found = dioxide::recover(&path, Recover::Inspect)?;
    println!("{:?}: the end lies between {} and {}", found.verdict, found.floor, found.ceiling);
    Ok(())
}
