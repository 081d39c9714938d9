use dioxide_powercut::{SCENARIOS, recording::*, workload};
use dioxide_testkit::lab::Fs;
use std::time::*;
fn main() {
    if dioxide_testkit::serve_if_asked(SCENARIOS).is_some() { return; }
    let a: Vec<String> = std::env::args().collect();
    let fs = Fs::ALL.into_iter().find(|f| f.name() == a[1]).unwrap();
    let w = workload::named(&a[2]).unwrap();
    let flushes = if a.len() > 4 { Flushes::Ignored } else { Flushes::Kept };
    let plan = Plan { fs, workload: w, flushes, seed: 1, records: 40, delay_max: Duration::from_millis(1) };
    let t = Instant::now();
    let mut r = Recording::new(&plan).unwrap();
    println!("{} {} recorded in {:?}, flushes {} durable {}", a[1], a[2], t.elapsed(), r.flushes(), r.durable());
    let n = a[3].parse().unwrap();
    let t = Instant::now();
    let (mut lost, mut recs) = (0, 0);
    for cut in r.cuts(n, 7) {
        match r.replay(cut) {
        Ok(s) => {
        recs += s.records;
        if !s.losses.is_empty() { lost += 1; if lost < 4 { println!("{cut:?} {:?}", s.losses); } } },
        Err(e) => println!("{cut:?} RIG {e}"),
        }
    }
    println!("{n} cuts, {:.1}/s, records {recs}, cuts with losses {lost}", n as f64 / t.elapsed().as_secs_f64());
    println!("fsck {:?}", r.fsck());
}
