//! dioxide with blocking threads. Growth and close are timed.

use super::threads::crew;
use crate::case::Space;
use crate::run::{Figures, Task};
use anyhow::Result;
use dioxide::{File, Growth, OpenOptions};

pub fn run(task: &Task<'_>) -> Result<Figures> {
    let file = open(task)?;
    let clock = crew(task, |block, offset| match task.case.space {
        Space::Regions => Ok(file.write_at(block, offset)?),
        _ => Ok(file.append(block).map(drop)?),
    })?;
    file.close()?;
    Ok(clock.stop())
}

/// Opens the file with the options of the case.
pub fn open(task: &Task<'_>) -> Result<File> {
    let growth = match task.case.space {
        Space::Grown(growth) => growth,
        _ => Growth::None,
    };
    let mut options = OpenOptions::new();
    options.write(true).durability(task.case.durability).growth(growth);
    Ok(task.open_with(&options)?)
}
