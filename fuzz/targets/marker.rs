//! The marker, with any bytes.
#![no_main]

use dioxide::fuzzing::Marker;
use libfuzzer_sys::fuzz_target;

mod markers;

fuzz_target!(|bytes: &[u8]| markers::check(bytes, Marker::decode));
