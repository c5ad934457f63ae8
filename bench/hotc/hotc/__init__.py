"""The driver of `bench/hotc/run`."""
