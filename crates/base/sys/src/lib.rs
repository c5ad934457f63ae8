//! The operating system: namespaces, mounts, cgroups, pidfds, descriptor passing, system call filters.
