//! Spans of invocations, sent to a collector over OTLP.
//!
//! A subscriber makes spans of the events of recorded invocations and puts them into a bounded queue. A thread of its own sends them in
//! batches, so that a slow or absent collector delays nobody: what does not fit is dropped and counted (`pilot_trace_spans_total`).
//!
//! Not here: which invocations are recorded (the gateway decides), and the contexts (`pilot-model`'s `trace`).

mod exporter;
mod otlp;
mod queue;
mod spans;
mod transport;

pub use exporter::{ExporterConfig, ExporterError, check, subscribe};
pub use transport::{Authorities, Compression, Endpoint, TransportConfig, TransportError};
