"""What functions import: `pilotlight`, SnapStart's hooks, and the parts of awslambdaric that Sentry patches."""
