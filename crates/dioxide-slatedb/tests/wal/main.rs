//! SlateDB on a local log. One executable, because linking SlateDB takes long.

mod admin;
mod crash;
mod database;
mod fence;
mod power_cuts;
mod support;
