"""The driver of `bench/edge-faas/run`."""
