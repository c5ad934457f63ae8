//! The invoker with a programmable engine, in tokio's paused time: every duration is exact, and no test really sleeps.

#![expect(
    clippy::unwrap_used,
    reason = "tests: clippy knows #[test] functions as such, but not what they share"
)]

mod fixture;

mod calls;
mod cold_and_warm;
mod failures;
mod forecasts;
mod hang_up;
mod initscripts;
mod keeping;
mod overload;
mod passing;
mod queue;
mod sizing;
mod streaming;
mod threads;
mod tunnels;
mod uploads;
mod versions;
