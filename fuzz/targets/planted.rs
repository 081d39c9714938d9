//! Control: a decoder that accepts a marker with a wrong checksum. The fuzzer must find it.
#![no_main]

use dioxide::fuzzing::Marker;
use libfuzzer_sys::fuzz_target;

mod markers;

fuzz_target!(|bytes: &[u8]| markers::check(bytes, |bytes| Marker::decode(&markers::sealed(bytes))));
