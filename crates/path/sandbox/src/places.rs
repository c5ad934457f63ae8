//! Paths in a sandbox. The root file system has them, empty, so that something can be mounted there later.

/// The code.
pub(crate) const CODE_INSIDE: &str = "/var/task";

/// Installed Python packages.
pub(crate) const PACKAGES_INSIDE: &str = "/opt/environment";

/// The libraries of layers, for the dynamic linker.
pub(crate) const LAYERS_LIB_INSIDE: &str = "/opt/lib";

/// The folders of shared libraries of a function, as on Lambda: those of the code, and of layers.
pub(crate) const LIBRARIES_INSIDE: [&str; 3] = [CODE_INSIDE, "/var/task/lib", LAYERS_LIB_INSIDE];

/// Installed Node packages: `require` and `import` search here, going up from the code's folder.
pub(crate) const NODE_MODULES_INSIDE: &str = "/var/node_modules";

/// The resolver's configuration; a file.
pub(crate) const RESOLVER_INSIDE: &str = "/etc/resolv.conf";
