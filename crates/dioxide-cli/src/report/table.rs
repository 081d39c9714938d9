//! The results as tables: one for each scenario, block size and durability.

use super::{Report, rival};
use crate::bench::figures::{Ratio, Row};
use crate::bench::work::{Route, Scenario, durability_name, growth_name};
use crate::units;
use comfy_table::{CellAlignment, Table, presets};

/// What stands above the table of these rows.
pub fn title(report: &Report, rows: &[Row]) -> String {
    let point = rows[0].point;
    let scenario = match point.scenario {
        Scenario::Append => "Appends",
        Scenario::Sync => "Sync writers",
    };
    let growth = point.growth.map(|growth| format!(", growth {}", growth_name(growth)));
    let cut_short = rows.iter().flat_map(|row| &row.runs).any(|run| run.is_cut_short);
    let remark = if cut_short { "; some runs filled their file and ended early (--size)" } else { "" };
    format!(
        "{scenario}: bs={} {}{}, {}; medians of {} rounds of {:.1} s{remark}",
        units::bytes(point.bs_bytes),
        durability_name(point.durability),
        growth.unwrap_or_default(),
        place(report),
        rows[0].runs.len(),
        rows[0].median(|run| run.elapsed.as_secs_f64()),
    )
}

/// `ext4 on loop0`, `btrfs`, `/dev/loop5`.
fn place(report: &Report) -> String {
    match (&report.fs, &report.machine.device) {
        (Some(fs), Some(device)) => format!("{fs} on {device}"),
        (Some(fs), None) => fs.clone(),
        (None, _) => report.machine.target.clone(),
    }
}

/// The table of these rows.
pub fn of(rows: &[Row]) -> String {
    let other = match rows[0].point.scenario {
        Scenario::Append => Route::Preallocated,
        Scenario::Sync => Route::Serialised,
    };
    let rivals = [Route::Kernel, other];
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header(rivals));
    for row in rows {
        table.add_row(cells(rows, row, rivals));
    }
    // Names to the left, numbers to the right.
    for column in table.column_iter_mut() {
        let is_name = column.index == 1;
        column.set_cell_alignment(if is_name { CellAlignment::Left } else { CellAlignment::Right });
    }
    table.trim_fmt()
}

fn header(rivals: [Route; 2]) -> Vec<String> {
    let columns = "numjobs|path|iops|MB/s|clat p50|p99|max|usr %|sys %|requests/op|flushes/op|extents";
    let ratios = rivals.map(|rival| format!("x {}", rival.name()));
    columns.split('|').map(str::to_owned).chain(ratios).collect()
}

fn cells(rows: &[Row], row: &Row, rivals: [Route; 2]) -> Vec<String> {
    let percentile = |percent| units::nanoseconds(row.clat.value_at_percentile(percent) as f64);
    let mut cells = vec![
        row.point.numjobs.to_string(),
        row.route.name().to_owned(),
        format!("{:.0}", row.iops()),
        format!("{:.1}", row.bw_bytes() / 1e6),
        percentile(50.0),
        percentile(99.0),
        percentile(100.0),
        format!("{:.0}", row.median(|run| run.usr_cpu)),
        format!("{:.0}", row.median(|run| run.sys_cpu)),
        known(row.median_per_op(|run| run.requests), 3),
        known(row.median_per_op(|run| run.flushes), 3),
        known(row.median_known(|run| run.extents), 0),
    ];
    cells.extend(rivals.map(|route| ratio(rival(rows, row, route))));
    cells
}

fn known(count: Option<f64>, digits: usize) -> String {
    count.map_or("-".into(), |count| format!("{count:.digits$}"))
}

fn ratio(ratio: Option<Ratio>) -> String {
    ratio.map_or("-".into(), |Ratio { min, median, max }| format!("{median:.2} ({min:.2}..{max:.2})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::examples::{append_point, row};
    use crate::meter::machine::Machine;

    fn title_of(rows: Vec<Row>) -> String {
        let machine = Machine::describe("/somewhere".into(), None);
        let report = Report { machine, fs: Some("ext4".into()), rows };
        title(&report, &report.rows)
    }

    #[test]
    fn a_table_shows_rates_and_ratios() {
        let rows = vec![
            row(append_point(64), Route::Kernel, &[100]),
            row(append_point(64), Route::Preallocated, &[200]),
            row(append_point(64), Route::Dioxide, &[300]),
        ];
        let text = of(&rows);
        let dioxide = text.lines().last().unwrap();
        assert!(dioxide.contains("dioxide") && dioxide.contains("3.00 (3.00..3.00)"), "{text}");
        assert!(dioxide.contains("1.50 (1.50..1.50)"), "{text}");
    }

    #[test]
    fn a_title_tells_the_conditions() {
        assert_eq!(
            title_of(vec![row(append_point(64), Route::Kernel, &[100])]),
            "Appends: bs=4k on-sync, growth unwritten, ext4; medians of 1 rounds of 1.0 s"
        );
        let fast = row(append_point(64), Route::Kernel, &[200_000]);
        assert!(title_of(vec![fast]).ends_with("some runs filled their file and ended early (--size)"));
    }
}
