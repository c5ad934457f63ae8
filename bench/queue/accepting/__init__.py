"""How many asynchronous invocations are accepted per second."""
