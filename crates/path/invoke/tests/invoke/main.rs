//! The invoker over a programmable engine, in tokio's paused time: every duration here is exact, nothing is slept through.

mod house;

mod cold_and_warm;
mod failures;
mod hang_up;
mod keeping;
mod queue;
mod sizing;
mod streaming;
mod versions;
