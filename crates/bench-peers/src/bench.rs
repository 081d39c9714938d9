//! Modules of `dioxide bench` for scratch files, latencies and ratios.

#[path = "../../dioxide-cli/src/bench/latency.rs"]
pub mod latency;
#[path = "../../dioxide-cli/src/bench/members.rs"]
pub mod members;
#[path = "../../dioxide-cli/src/bench/order.rs"]
pub mod order;
#[path = "../../dioxide-cli/src/bench/place.rs"]
pub mod place;
#[path = "../../dioxide-cli/src/bench/ratio.rs"]
pub mod ratio;
#[path = "../../dioxide-cli/src/bench/schedule.rs"]
pub mod schedule;
#[path = "../../dioxide-cli/src/bench/stamp.rs"]
pub mod stamp;
