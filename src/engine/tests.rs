//! Tests of the engine on the simulated disk.
