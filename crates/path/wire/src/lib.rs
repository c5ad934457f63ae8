//! Frames between the daemon and a language worker; codec only, no I/O.
