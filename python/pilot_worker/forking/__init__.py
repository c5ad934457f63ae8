"""From a template to a worker: the fork, and what the two must not share afterwards."""
