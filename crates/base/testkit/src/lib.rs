//! Fakes for the ports, a manual clock, capability probes; for tests only.
