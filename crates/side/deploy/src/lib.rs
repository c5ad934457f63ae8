//! Deployment: unpacking code, building environments, the registry.
