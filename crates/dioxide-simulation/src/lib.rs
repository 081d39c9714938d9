//! Tests of dioxide-io and dioxide-ext on the simulated disk. A crate of their own, because their
//! optimised build is most of their time, and they need few other crates.
