//! A decoder that takes a marker with a wrong checksum: to be found.
#![no_main]

use dioxide::fuzzing::Marker;
use libfuzzer_sys::fuzz_target;

mod markers;

fuzz_target!(|bytes: &[u8]| markers::check(bytes, |bytes| Marker::decode(&markers::sealed(bytes))));
