//! Shows the state in which a crash left a file: `cargo run --example recover -- FILE`.

use dioxide::Recover;

fn main() -> dioxide::Result<()> {
    let path = std::env::args_os().nth(1).expect("usage: recover FILE");
    let found = dioxide::recover(&path, Recover::Inspect)?; // changes nothing; Recover::Truncate truncates
    println!("{:?}: the end lies between {} and {}", found.verdict, found.floor, found.ceiling);
    Ok(())
}
