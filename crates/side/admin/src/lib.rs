//! The control API, the functions' logs, metrics text.
