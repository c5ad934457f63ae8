"""A function that tries to escape. The isolation suite deploys it; never run it without a sandbox.

`handler({"try": NAME, ...})` runs one attempt and returns `[escaped, what it saw]`: the function `try_NAME` of this module or of one in
`attempts`. Attempts that may end the process run in a child. `AT_IMPORT` has the results of the same attempts during the import of
this module, which runs in the template.
"""

import os

from attempts import calls, descriptors, files, kernel, limits, network, privileges, processes

MODULES = (calls, descriptors, files, limits, network, privileges, processes)


def handler(event, context):
    what = event["try"]
    if what == "at_import":
        return AT_IMPORT[event["name"]]
    return attempt_named(what)(*event.get("with", []))


def attempt_named(name):
    """The attempt of this name. Tests append some to this module."""
    name = "try_" + name
    return globals().get(name) or next(vars(module)[name] for module in MODULES if name in vars(module))


count = 0


def try_count():
    global count
    count += 1
    return [False, count]


def any_of(attempt, names):
    said = {name: attempt(name) for name in names}
    return [any(escaped for escaped, _ in said.values()), {name: seen for name, (_, seen) in said.items()}]


def at_import():
    said = {}
    attempts = {
        "host files": lambda: files.try_read(
            ["/etc/shadow", "/root/.bashrc", "/root/.cargo", "/home", "/var/lib", "/proc/1/root/etc/shadow"]
        ),
        "namespaces": calls.try_setns,
        "memory of others": processes.try_memory_of_others,
        "mount": lambda: calls.try_call("mount"),
        "identity": privileges.try_identity,
        "send descriptor": descriptors.try_send_descriptor,
        "devices": files.try_devices,
        "writes": lambda: [False, files.try_write()],
        "network": network.try_network,
        "raw socket": lambda: network.try_socket("raw"),
        "chroot": lambda: calls.try_call("chroot"),
        "bpf": lambda: calls.try_call("bpf"),
        "ptrace": lambda: calls.try_call("ptrace"),
        "as root": privileges.try_as_root,
        "become any user": privileges.try_become_any_user,
        "unshare": lambda: any_of(calls.try_unshare, kernel.CLONE_FLAGS),
        "mount calls": lambda: any_of(
            calls.try_call, ["umount2", "pivot_root", "open_tree", "move_mount", "fsopen", "mount_setattr"]
        ),
        "keyrings and the like": lambda: any_of(
            calls.try_call, ["keyctl", "add_key", "perf_event_open", "userfaultfd", "io_uring_setup", "reboot"]
        ),
        "processes": lambda: processes.try_processes(8),
    }
    attempts.pop(os.environ.get("LEAVE_OUT"), None)
    for name, attempt in attempts.items():
        try:
            said[name] = attempt()
        except BaseException as error:
            said[name] = [None, f"{type(error).__name__}: {error}"]
    return said


AT_IMPORT = at_import() if os.environ.get("TRY_AT_IMPORT") else {}
if os.environ.get("KILL_PARENT_AT_IMPORT"):
    AT_IMPORT["kill parent"] = processes.try_kill_parent()
