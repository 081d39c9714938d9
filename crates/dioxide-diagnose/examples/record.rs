//! Watches a program and writes the evidence as JSON: `record PID SECONDS`.

use dioxide_diagnose::evidence::Subject;
use dioxide_diagnose::watch::{Options, Watcher, Whom};
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let pid = arguments.next().ok_or("which process?")?.parse()?;
    let seconds = arguments.next().map_or(Ok(5.0), |seconds| seconds.parse())?;
    let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline"))?
        .replace('\0', " ")
        .trim()
        .to_owned();
    let watcher = Watcher::start(Whom::Program { pid }, Options::default())?;
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < end && !watcher.is_over() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let evidence = watcher.stop(Subject::Program { pid, command, processes: 0, selected: None });
    serde_json::to_writer_pretty(std::io::stdout(), &evidence)?;
    println!();
    Ok(())
}
