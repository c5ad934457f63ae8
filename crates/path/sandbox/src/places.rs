//! Where a sandbox's processes find what belongs to a function. The root file system has these places, empty, so that something can
//! be shown there later.

/// The code.
pub(crate) const CODE_INSIDE: &str = "/var/task";

/// Installed Python packages.
pub(crate) const PACKAGES_INSIDE: &str = "/opt/environment";

/// Installed Node packages: where both `require` and `import` look for them from the code's folder upwards.
pub(crate) const NODE_MODULES_INSIDE: &str = "/var/node_modules";

/// Where names are resolved; a file.
pub(crate) const RESOLVER_INSIDE: &str = "/etc/resolv.conf";
