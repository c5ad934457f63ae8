//! An invocation: version look-up, admission, queue, deadline, exchange, timeline.
