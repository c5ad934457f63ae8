//! Process 1 of a sandbox: our own code, single-threaded, with capabilities in the sandboxes' user namespace only. It mounts
//! what is the sandbox's own, makes sandboxes inside this one, starts programs, reaps, cleans. It ends, and with it
//! everything in its PID namespace, when its control socket closes.
//!
//! It runs in a process that was forked from the daemon's spawner: what it inherits of memory is read and never freed.

use std::convert::Infallible;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::CloneFlags;
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::statvfs::statvfs;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Gid, Pid, Uid, setgroups, sethostname, setresgid, setresuid, write};
use pilot_sys::capability::{self, Capability};
use pilot_sys::process::{self, Program, Side};
use pilot_sys::{loopback, seqpacket};

use crate::filter::Filters;
use crate::message::{ExecSpec, InitReply, InitRequest, NAMESPACES};

/// What a template's process keeps, inside the user namespace: what `setns` and the change to a function's user need. Its
/// filter lets it do nothing else with them.
const TEMPLATE_CAPABILITIES: [Capability; 5] = [
    Capability::SysAdmin,
    Capability::SysChroot,
    Capability::Setuid,
    Capability::Setgid,
    Capability::Setpcap,
];

/// The namespaces a sandbox has of its own, whatever its network.
pub(crate) const OWN_NAMESPACES: CloneFlags = CloneFlags::CLONE_NEWPID
    .union(CloneFlags::CLONE_NEWNS)
    .union(CloneFlags::CLONE_NEWIPC)
    .union(CloneFlags::CLONE_NEWUTS);

const HOST_NAME: &str = "pilotlight";

/// Whether a sandbox has a network namespace of its own (and so a loopback device to switch on).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnNetwork {
    /// It has.
    Yes,
    /// It shares that of the sandbox it is in, or the host's.
    No,
}

/// Runs the init on its control socket. Never returns to the code of the process it was forked from.
pub(crate) fn run(
    control: Option<OwnedFd>,
    filters: &Filters,
    network: OwnNetwork,
    tmp_bytes_max: u64,
) -> Infallible {
    let Some(control) = control else {
        process::exit_now(1)
    };
    let status = match set_up(&control, network, tmp_bytes_max) {
        Ok(()) => {
            let mut init = Init {
                control,
                filters,
                program: None,
            };
            // An error here is the control socket's: nobody is left to tell.
            i32::from(init.serve().is_err())
        }
        Err(problem) => {
            let _ = reply(control.as_fd(), &InitReply::Failed { problem }, &[]);
            1
        }
    };
    process::exit_now(status)
}

fn set_up(control: &OwnedFd, network: OwnNetwork, tmp_bytes_max: u64) -> Result<(), String> {
    let what = |step: &'static str| move |error: Errno| format!("{step}: {error}");
    sethostname(HOST_NAME).map_err(what("set the host name"))?;
    if network == OwnNetwork::Yes {
        loopback::bring_up().map_err(|error| format!("bring loopback up: {error}"))?;
    }
    mount_own(tmp_bytes_max)?;
    let none: Option<&str> = None;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, none).map_err(what("mount /proc"))?;
    let namespaces = NAMESPACES
        .iter()
        .map(|name| File::open(Path::new("/proc/self/ns").join(name)).map(OwnedFd::from))
        .collect::<io::Result<Vec<_>>>()
        .map_err(|error| format!("open the sandbox's namespaces: {error}"))?;
    let borrowed: Vec<_> = namespaces.iter().map(AsFd::as_fd).collect();
    reply(control.as_fd(), &InitReply::Ready, &borrowed).map_err(|error| error.to_string())
}

/// The places a function may write to. Limited in size; what lies there counts as the sandbox's memory.
const WRITABLE: [(&str, u64); 2] = [("/tmp", 1), ("/dev/shm", 2)];

fn mount_own(tmp_bytes_max: u64) -> Result<(), String> {
    for (path, share) in WRITABLE {
        let options = format!("mode=1777,size={},nr_inodes=65536", tmp_bytes_max / share);
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(
            Some("tmpfs"),
            path,
            Some("tmpfs"),
            flags,
            Some(options.as_str()),
        )
        .map_err(|error| format!("mount {path}: {error}"))?;
    }
    Ok(())
}

struct Init<'a> {
    control: OwnedFd,
    filters: &'a Filters,
    /// The program started by `Exec`, while it runs.
    program: Option<Pid>,
}

impl Init<'_> {
    /// Serves until the control socket closes.
    fn serve(&mut self) -> io::Result<()> {
        // The spawner ignores it, so that the kernel reaps; here it is needed to learn how programs end.
        process::default_signal(Signal::SIGCHLD)?;
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGCHLD);
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&mask), None)?;
        let children = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        loop {
            let mut fds = [
                PollFd::new(self.control.as_fd(), PollFlags::POLLIN),
                PollFd::new(children.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            let child_ended = fds[1].any().unwrap_or(false);
            let asked = fds[0].any().unwrap_or(false);
            if child_ended {
                while children.read_signal()?.is_some() {}
                self.reap()?;
            }
            if asked {
                let Some(message) = seqpacket::receive(&self.control)? else {
                    return Ok(());
                };
                let answer = match serde_json::from_slice(&message.bytes) {
                    Ok(request) => self.answer(request, message.fds),
                    Err(error) => Some(InitReply::Failed {
                        problem: format!("a request is not understood: {error}"),
                    }),
                };
                if let Some(answer) = answer {
                    reply(self.control.as_fd(), &answer, &[])?;
                }
            }
        }
    }

    fn answer(&mut self, request: InitRequest, mut fds: Vec<OwnedFd>) -> Option<InitReply> {
        match request {
            InitRequest::Nest { tmp_bytes_max } => {
                let control = fds.pop()?;
                self.nest(control, tmp_bytes_max).err().map(failed)
            }
            InitRequest::Exec(spec) => Some(match self.exec(&spec, fds) {
                Ok(pid) => {
                    self.program = Some(pid);
                    InitReply::Started
                }
                Err(error) => failed(error),
            }),
            InitRequest::Clean { tmp_bytes_max } => Some(match clean(tmp_bytes_max) {
                Ok(()) => InitReply::Clean,
                Err(leftover) => InitReply::Dirty { leftover },
            }),
        }
    }

    /// The new init answers on its own control socket.
    fn nest(&self, control: OwnedFd, tmp_bytes_max: u64) -> io::Result<()> {
        match process::fork_with(OWN_NAMESPACES)? {
            Side::Child => process::child_main(vec![control], |mut kept| {
                run(kept.pop(), self.filters, OwnNetwork::No, tmp_bytes_max)
            }),
            Side::Parent(_) => Ok(()),
        }
    }

    fn exec(&self, spec: &ExecSpec, mut fds: Vec<OwnedFd>) -> io::Result<Pid> {
        let program = Program::new(&spec.path, &spec.arguments, &spec.environment)?;
        let cgroup_files = fds.split_off(fds.len().saturating_sub(spec.cgroup_files));
        match process::fork_with(CloneFlags::empty())? {
            Side::Parent(pid) => Ok(pid),
            Side::Child => {
                let error = match self.become_unprivileged(spec, &cgroup_files) {
                    Ok(()) => program.exec(&fds),
                    Err(error) => error,
                };
                // The daemon reads the log, which is descriptor 2 of the program-to-be.
                if let Some(log) = fds.get(2) {
                    let _ = write(
                        log,
                        format!("cannot start {}: {error}\n", spec.path).as_bytes(),
                    );
                }
                process::exit_now(126)
            }
        }
    }

    fn become_unprivileged(&self, spec: &ExecSpec, cgroup_files: &[OwnedFd]) -> io::Result<()> {
        for file in cgroup_files {
            write(file, b"0")?;
        }
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
        for ignored in [
            Signal::SIGHUP,
            Signal::SIGINT,
            Signal::SIGTERM,
            Signal::SIGCHLD,
            Signal::SIGPIPE,
        ] {
            process::default_signal(ignored)?;
        }
        for (resource, most) in LIMITS {
            let (soft, hard) = getrlimit(resource)?;
            setrlimit(resource, most.min(soft), most.min(hard))?;
        }
        let kept: &[Capability] = if spec.template {
            &TEMPLATE_CAPABILITIES
        } else {
            &[]
        };
        capability::bound_to(kept)?;
        capability::keep_across_setuid()?;
        if let Some(user) = spec.user {
            setgroups(&[])?;
            let (user, group) = (Uid::from_raw(user), Gid::from_raw(user));
            setresgid(group, group, group)?;
            setresuid(user, user, user)?;
        }
        capability::keep_only(kept)?;
        prctl::set_no_new_privs()?;
        self.filters.template.install()?;
        self.filters.absent.install()?;
        if !spec.template {
            self.filters.worker.install()?;
        }
        Ok(())
    }

    /// Reaps everything that has ended and reports the program's end. Orphans of user code come here too.
    fn reap(&mut self) -> io::Result<()> {
        loop {
            let (pid, code, ended_by) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, Some(code), None),
                Ok(WaitStatus::Signaled(pid, ended_by, _)) => (pid, None, Some(ended_by as i32)),
                Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return Ok(()),
                Ok(_) | Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            };
            if self.program == Some(pid) {
                self.program = None;
                let exited = InitReply::Exited {
                    code,
                    signal: ended_by,
                };
                reply(self.control.as_fd(), &exited, &[])?;
            }
        }
    }
}

/// Limits of every process in a sandbox beyond its cgroup's. No core dumps: they could fill the disk.
const LIMITS: [(Resource, u64); 3] = [
    (Resource::RLIMIT_CORE, 0),
    (Resource::RLIMIT_NOFILE, 4096),
    (Resource::RLIMIT_MEMLOCK, 64 * 1024),
];

/// Ends what still runs, empties what can be written to, and refuses when IPC objects were left.
fn clean(tmp_bytes_max: u64) -> Result<(), String> {
    // Everyone but this process. The use's own process was reaped before the daemon asked; orphans are ours to reap.
    for _ in 0..CLEAN_ROUNDS_MAX {
        match kill(Pid::from_raw(-1), Signal::SIGKILL) {
            Err(Errno::ESRCH) => return empty(tmp_bytes_max),
            Err(error) => return Err(format!("processes that cannot be ended: {error}")),
            Ok(()) => match waitpid(None, None) {
                Ok(_) | Err(Errno::EINTR) => {}
                // Still there and not ours: its parent outside has not reaped it yet.
                Err(Errno::ECHILD) => return Err("a process whose parent is outside".to_owned()),
                Err(error) => return Err(format!("processes that cannot be reaped: {error}")),
            },
        }
    }
    Err("processes that keep coming back".to_owned())
}

const CLEAN_ROUNDS_MAX: usize = 10_000;

fn empty(tmp_bytes_max: u64) -> Result<(), String> {
    for table in ["msg", "sem", "shm"] {
        let text = fs::read_to_string(format!("/proc/sysvipc/{table}")).unwrap_or_default();
        if text.lines().count() > 1 {
            return Err(format!("System V IPC objects ({table})"));
        }
    }
    let used = WRITABLE.iter().any(|(path, _)| {
        // The root folder itself is one inode.
        statvfs(*path).map_or(true, |fs| fs.files() - fs.files_free() > 1)
    });
    if used {
        for (path, _) in WRITABLE {
            umount2(path, MntFlags::MNT_DETACH).map_err(|error| format!("{path}: {error}"))?;
        }
        mount_own(tmp_bytes_max)?;
    }
    Ok(())
}

fn failed(error: impl std::fmt::Display) -> InitReply {
    InitReply::Failed {
        problem: error.to_string(),
    }
}

fn reply(control: BorrowedFd<'_>, reply: &InitReply, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(reply)?;
    seqpacket::send(control, &bytes, fds)
}
