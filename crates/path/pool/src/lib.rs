//! Workers: state machine, leases, sizing, keep-alive, eviction under pressure.
