//! The command-line tools, run as people and scripts run them.

mod harness;
mod memory;
mod round_trip;
mod sign;
mod verify;
