//! Processes: templates, fork, namespaces, cgroups, seccomp, supervision.
