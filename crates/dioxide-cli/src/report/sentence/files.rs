//! The closing sentences of the scenarios with several files.

use super::{comparison, subject};
use crate::bench::figures::Row;
use crate::bench::work::{Point, space_name};
use crate::report::largest;
use dioxide_diagnose::words::{counted, nanoseconds, rate};

/// `1024 files in written space`.
pub fn of(point: Point) -> String {
    counted(point.files.unwrap_or(1) as u64, "file") + &in_space(point)
}

/// ` in 64 logs in recycled space`.
pub fn logs(point: Point) -> String {
    let logs = point.files.map(|files| format!(" in {}", counted(files as u64, "log")));
    logs.unwrap_or_default() + &in_space(point)
}

fn in_space(point: Point) -> String {
    point.space.map(|space| format!(" in {} space", space_name(space))).unwrap_or_default()
}

/// The rate of each path.
pub fn writes(rows: &[Row]) -> String {
    summary(rows, |row| rate(row.iops()))
}

/// The median time of a checkpoint on each path.
pub fn checkpoints(rows: &[Row]) -> String {
    summary(rows, |row| nanoseconds(row.timings.seen().value_at_percentile(50.0) as f64))
}

/// A figure of each path with the most operations in flight, and dioxide's paths compared.
fn summary(rows: &[Row], figure: fn(&Row) -> String) -> String {
    let largest = largest(rows);
    let figures = largest.iter().map(|row| format!("{} {}", row.route.name(), figure(row)));
    let figures: Vec<String> = figures.collect();
    let mut text = format!("{}: {}.", subject(rows[0].point), figures.join(", "));
    for row in largest.into_iter().filter(|row| row.route.is_dioxide()) {
        text += &comparison(rows, row);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::{crew, of as sentence};
    use crate::bench::figures::examples::{checkpoint_point, files_point, row};
    use crate::bench::work::Route;

    #[test]
    fn many_files_of_one_directory() {
        let point = files_point(1024, 64);
        let rows = [
            row(files_point(1024, 4), Route::OneThread, &[100; 5]),
            row(files_point(1024, 4), Route::Dioxide, &[300; 5]),
            row(point, Route::Kernel, &[200; 5]),
            row(point, Route::Syncfs { iodepth: 64 }, &[600; 5]),
            row(point, Route::Dioxide, &[1200; 5]),
            row(point, Route::Queue { iodepth: 64 }, &[600; 5]),
        ];
        assert_eq!(
            sentence(&rows),
            "Durable writes of 4 KiB to 1024 files in written space: one-thread 100/s, dioxide \
             1200/s, kernel 200/s, syncfs 600/s, dioxide-queue 600/s. With 64 threads, dioxide is \
             12x as fast as one thread, 6.00x as fast as the kernel, and 2.00x as fast as syncfs. \
             With one thread with 64 outstanding, dioxide-queue is 6.00x as fast as one thread, \
             3.00x as fast as the kernel, and level with syncfs at 1.00x its rate."
        );
        assert_eq!(crew(&rows[3]), "one thread in batches of 64");
    }

    #[test]
    fn checkpoints() {
        let rows = [
            row(checkpoint_point(1), Route::Kernel, &[20; 5]),
            row(checkpoint_point(1), Route::Dioxide, &[40; 5]),
        ];
        assert_eq!(
            sentence(&rows),
            "Checkpoints of 1 file in written space, 4 KiB in each: kernel 500.2 us, dioxide 500.2 \
             us. With one thread, dioxide is 2.00x as fast as the kernel's threads."
        );
    }
}
