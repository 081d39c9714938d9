//! Appends from some threads, and prints the metrics of the log and of the library below it, in the
//! format of Prometheus.
//!
//! ```sh
//! cargo run --release --package dioxide-log --example metrics -- DIR
//! ```

use dioxide_log::LogOptions;
use metrics_exporter_prometheus::PrometheusBuilder;
use std::error::Error;
use std::thread;

const THREADS: u64 = 8;
const RECORDS: u64 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args().nth(1).ok_or("metrics DIR")?;
    let buckets: Vec<f64> = (-5..=6).map(|exponent| 10f64.powi(exponent)).collect();
    let recorder = PrometheusBuilder::new().set_buckets(&buckets)?.install_recorder()?;
    dioxide::observe::set_observer(dioxide::observe::metrics())?;
    dioxide_log::observe::set_observer(dioxide_log::observe::metrics())?;

    let log = LogOptions::new().segment_bytes(1 << 20).open(&dir)?;
    thread::scope(|scope| {
        let append = || (0..RECORDS).try_for_each(|_| log.append(&[1; 200]).map(drop));
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(append)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no append panics"))
    })?;
    log.truncate_front(log.next_lsn())?;
    log.close()?;
    print!("{}", recorder.render());
    Ok(())
}
