//! HTTP in and out: accept, auth, limits, routes, streaming, drain; one table from errors to statuses.
