//! The scripts are the examples of this crate.

#![no_std]
