//! Latencies as percentiles, in fio's layout, for people and scripts that know it.

use crate::bench::figures::Row;
use crate::bench::latency::Latencies;

/// The percentiles of fio.
pub const PERCENTILES: [f64; 17] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95,
    99.99,
];
/// The minimum width in digits.
const WIDTH_MIN: usize = 5;
/// The width of a line, and of a percentile without its digits.
const LINE: usize = 70;
const FRAME: usize = 11;

/// A block for each row.
pub fn of(rows: &[Row]) -> String {
    rows.iter().map(of_row).collect()
}

fn of_row(row: &Row) -> String {
    // From the due time with an offered load.
    let kind = if row.timings.lat.is_some() { "lat" } else { "clat" };
    let (numjobs, path, iodepth) =
        (row.point.threads(row.route), row.route.name(), row.route.iodepth());
    let block = block(row.timings.seen());
    format!("  numjobs={numjobs} {path} iodepth={iodepth}:\n    {kind} percentiles {block}\n")
}

fn block(latencies: &Latencies) -> String {
    let [min_ns, max_ns] =
        [PERCENTILES[0], PERCENTILES[16]].map(|at| latencies.value_at_percentile(at));
    let (unit, unit_ns) = unit(min_ns, max_ns);
    let value = |at| latencies.value_at_percentile(at).div_ceil(unit_ns);
    let width = max_ns.div_ceil(unit_ns).to_string().len().max(WIDTH_MIN);
    let cells = PERCENTILES.map(|at| format!(" {at:5.2}th=[{:width$}]", value(at)));
    let lines: Vec<String> =
        cells.chunks(LINE / (FRAME + width)).map(|cells| cells.join(",")).collect();
    format!("({unit}):\n     |{}", lines.join(",\n     |"))
}

/// fio's unit for values of this range, and its nanoseconds.
fn unit(min_ns: u64, max_ns: u64) -> (&'static str, u64) {
    match (min_ns, max_ns) {
        (2_000_001.., 100_000_000..) => ("msec", 1_000_000),
        (2_001.., 100_000..) => ("usec", 1_000),
        _ => ("nsec", 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::examples::{mixed_point, row};
    use crate::bench::work::{Point, Route};

    #[test]
    fn laid_out_as_in_fio() {
        let mut row = row(mixed_point(2), Route::Kernel, &[100]);
        row.timings.clat.clear();
        // 2.2 us to 220 us, evenly distributed.
        (1..=1000).for_each(|nth| row.timings.clat.saturating_record(2_000 + nth * 220));
        assert_eq!(
            of(&[row]),
            [
                "  numjobs=2 kernel iodepth=1:\n",
                "    clat percentiles (usec):\n",
                "     |  1.00th=[    5],  5.00th=[   14], 10.00th=[   25], 20.00th=[   47],\n",
                "     | 30.00th=[   69], 40.00th=[   91], 50.00th=[  113], 60.00th=[  135],\n",
                "     | 70.00th=[  157], 80.00th=[  179], 90.00th=[  201], 95.00th=[  212],\n",
                "     | 99.00th=[  220], 99.50th=[  221], 99.90th=[  223], 99.95th=[  223],\n",
                "     | 99.99th=[  223]\n",
            ]
            .concat()
        );
    }

    #[test]
    fn long_values_have_room() {
        let mut row = row(mixed_point(2), Route::Kernel, &[100]);
        row.timings.clat.clear();
        (1..=100).for_each(|nth| {
            row.timings.clat.saturating_record(if nth < 100 { 1_000 } else { 28_049_000 })
        });
        let text = of(&[row]);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(lines[0], "    clat percentiles (nsec):");
        assert_eq!(lines[1], "     |  1.00th=[    1000],  5.00th=[    1000], 10.00th=[    1000],");
        assert_eq!(lines[6], "     | 99.95th=[28049407], 99.99th=[28049407]");
    }

    #[test]
    fn units_as_in_fio() {
        assert_eq!(unit(2_000, 10_000_000).0, "nsec");
        assert_eq!(unit(10_519, 57_976).0, "nsec");
        assert_eq!(unit(30_000, 2_540_000).0, "usec");
        assert_eq!(unit(2_008_000, 4_621_000).0, "usec");
        assert_eq!(unit(3_000_000, 150_000_000).0, "msec");
    }

    #[test]
    fn a_given_load_is_called_so() {
        let point = Point { rate_iops: Some(10), ..mixed_point(1) };
        assert!(
            of(&[row(point, Route::Dioxide, &[10])])
                .contains("dioxide iodepth=1:\n    lat percentiles")
        );
    }
}
