//! The marker, as anybody may have written it.
#![no_main]

use dioxide::fuzzing::Marker;
use libfuzzer_sys::fuzz_target;

mod markers;

fuzz_target!(|bytes: &[u8]| markers::check(bytes, Marker::decode));
