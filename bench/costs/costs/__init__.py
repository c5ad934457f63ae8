"""Bills of traces, and the CPU quota: measured, by the model, and in the published logs."""
