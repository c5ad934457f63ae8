//! Process 1 of a sandbox: single-threaded code of this crate, with capabilities in the sandboxes' user namespace only. It
//! mounts the sandbox's own file systems, makes sandboxes inside, starts programs, reaps and cleans. When its control socket
//! closes it exits, and the kernel ends everything in its PID namespace.
//!
//! It leads a process group of its own, and each program that it starts a session. A signal to a process group reaches all its processes,
//! in whatever PID namespace they are (kill(2)): it must not reach the daemon, another sandbox, or the init.
//!
//! It runs in a process that was forked from the daemon's spawner: memory that it inherited is read and never freed.

mod folders;
mod orphans;
mod secrets;
mod sockets;

use std::convert::Infallible;
use std::fs::File;
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
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{
    AccessFlags, Gid, Pid, Uid, access, chdir, setgroups, sethostname, setpgid, setresgid,
    setresuid, setsid, write,
};
use pilot_sys::capability::{self, Capability};
use pilot_sys::process::{self, Program, Side};
use pilot_sys::{loopback, mount as trees, seqpacket, sysv};

use self::orphans::Orphans;
use crate::filter::Filters;
use crate::message::{ExecSpec, Folders, InitReply, InitRequest, NAMESPACES, USERS, Usage};
use crate::process_ids;
use crate::rootfs::HOST_NAME;

/// The capabilities of a template's process in the user namespace: for `setns` and for switching to a function's user. Its
/// filter allows no other use of them.
const TEMPLATE_CAPABILITIES: [Capability; 5] = [
    Capability::SysAdmin,
    Capability::SysChroot,
    Capability::Setuid,
    Capability::Setgid,
    Capability::Setpcap,
];

/// The namespaces that every sandbox has of its own, apart from the network.
pub(crate) const OWN_NAMESPACES: CloneFlags = CloneFlags::CLONE_NEWPID
    .union(CloneFlags::CLONE_NEWNS)
    .union(CloneFlags::CLONE_NEWIPC)
    .union(CloneFlags::CLONE_NEWUTS);

/// Whether a sandbox has its own network namespace, whose loopback device must be set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnNetwork {
    /// Its own.
    Yes,
    /// That of the sandbox around it, or the host's.
    No,
}

/// What a sandbox has of its own apart from [`OWN_NAMESPACES`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Own {
    pub(crate) network: OwnNetwork,
    /// A user namespace, which processes from outside enter first.
    pub(crate) users: bool,
}

/// Runs the init on its control socket. Never returns to the code of the process that it was forked from.
pub(crate) fn run(
    control: Option<OwnedFd>,
    filters: &Filters,
    own: Own,
    usage: Usage,
) -> Infallible {
    let Some(control) = control else {
        process::exit_now(1)
    };
    let status = match set_up(&control, own, usage) {
        Ok(()) => {
            let mut init = Init {
                control,
                filters,
                programs: Vec::new(),
                resting: Vec::new(),
                orphans: Orphans::default(),
            };
            // An error here is the control socket's, so it cannot be reported.
            i32::from(init.serve().is_err())
        }
        Err(problem) => {
            let _ = reply(control.as_fd(), &failed(problem), &[]);
            1
        }
    };
    process::exit_now(status)
}

fn set_up(control: &OwnedFd, own: Own, usage: Usage) -> Result<(), String> {
    let what = |step: &'static str| move |error: Errno| format!("{step}: {error}");
    let this = Pid::from_raw(0);
    setpgid(this, this).map_err(what("begin a process group"))?;
    sethostname(HOST_NAME).map_err(what("set the host name"))?;
    if own.network == OwnNetwork::Yes {
        loopback::bring_up().map_err(|error| format!("bring loopback up: {error}"))?;
    }
    if let Some(user) = usage.folders.user {
        folders::show_user(user).map_err(|error| format!("show the user {user}: {error}"))?;
    }
    folders::mount_own(usage.folders)?;
    let none: Option<&str> = None;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, none).map_err(what("mount /proc"))?;
    hide_locks().map_err(what("hide /proc/locks"))?;
    begin_pids_at(usage.first_pid)?;
    let names = NAMESPACES.iter().chain(own.users.then_some(&USERS));
    let namespaces = names
        .map(|name| File::open(Path::new("/proc/self/ns").join(name)).map(OwnedFd::from))
        .collect::<io::Result<Vec<_>>>()
        .map_err(|error| format!("open the sandbox's namespaces: {error}"))?;
    let borrowed: Vec<_> = namespaces.iter().map(AsFd::as_fd).collect();
    reply(control.as_fd(), &InitReply::Ready, &borrowed).map_err(|error| error.to_string())
}

/// While somebody reads `/proc/locks`, the locks of all programs of the machine wait (`locks_start` in fs/locks.c). A mount of the
/// sandbox's own user namespace, so that sandboxes inside may mount their `/proc` (mount_too_revealing() in fs/namespace.c).
fn hide_locks() -> nix::Result<()> {
    let none: Option<&str> = None;
    match mount(
        Some("/dev/null"),
        "/proc/locks",
        none,
        MsFlags::MS_BIND,
        none,
    ) {
        // A kernel without locks.
        Err(Errno::ENOENT) => Ok(()),
        hidden => hidden,
    }
}

fn begin_pids_at(first: u32) -> Result<(), String> {
    process_ids::begin_at(first).map_err(|error| format!("set the first process id: {error}"))
}

struct Init<'a> {
    control: OwnedFd,
    filters: &'a Filters,
    /// The running programs that `Exec` started, and the sockets on which their end is reported.
    programs: Vec<(Pid, OwnedFd)>,
    /// The sockets on which requests wait until nothing runs any more.
    resting: Vec<OwnedFd>,
    orphans: Orphans,
}

impl Init<'_> {
    /// Serves until the control socket closes.
    fn serve(&mut self) -> io::Result<()> {
        // The spawner ignores this signal so that the kernel reaps. Here it is needed to see how programs end.
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
                if let Ok(request) = serde_json::from_slice(&message.bytes) {
                    self.take(request, message.fds);
                }
            }
        }
    }

    /// Executes a request. If the caller is gone, the answer is lost.
    fn take(&mut self, request: InitRequest, fds: Vec<OwnedFd>) {
        let mut fds = fds.into_iter();
        let Some(first) = fds.next() else { return };
        if let InitRequest::Nest { own_network, usage } = request {
            // The new init answers on its own control socket; if there is none, the daemon sees that it is closed.
            let _ = self.nest(first, own_network, usage);
            return;
        }
        let socket;
        let (answer, attached) = match request {
            InitRequest::Exec(spec) => match self.exec(&spec, fds.collect()) {
                Ok(pid) => {
                    let _ = reply(
                        first.as_fd(),
                        &InitReply::Started { pid: pid.as_raw() },
                        &[],
                    );
                    self.programs.push((pid, first));
                    return;
                }
                Err(error) => (failed(error), None),
            },
            InitRequest::Listen { port } => match sockets::listen(port) {
                Ok(made) => {
                    socket = made;
                    (InitReply::Socket, Some(socket.as_fd()))
                }
                Err(error) => (failed_call(&error), None),
            },
            InitRequest::Connect { port } => match sockets::connect(port) {
                Ok(made) => {
                    socket = made;
                    (InitReply::Socket, Some(socket.as_fd()))
                }
                Err(error) => (failed_call(&error), None),
            },
            InitRequest::Rest => {
                self.resting.push(first);
                // If no process is left, no end will be reported later, so check now. On an error, the next end retries.
                let _ = self.reap();
                return;
            }
            InitRequest::Clean { usage } => {
                // They are killed now, and their end is not reported.
                self.programs.clear();
                self.resting.clear();
                let answer = match clean(usage) {
                    Ok(()) => InitReply::Clean,
                    Err(leftover) => InitReply::Dirty { leftover },
                };
                (answer, None)
            }
            InitRequest::Signal { signal } => (self.signal(signal), None),
            // The init itself is not among them (kill(2)).
            InitRequest::End => match kill(Pid::from_raw(-1), Signal::SIGKILL) {
                // There is none.
                Ok(()) | Err(Errno::ESRCH) => (InitReply::Done, None),
                Err(error) => (failed(error), None),
            },
            InitRequest::EndOrphans => {
                let programs = &self.programs;
                self.orphans
                    .end(|pid| programs.iter().any(|(program, _)| *program == pid));
                (InitReply::Done, None)
            }
            InitRequest::Show { inside } => (show(&inside, fds.next()), None),
            InitRequest::Secrets { files, user } => (secrets::show(&files, user, fds.next()), None),
            InitRequest::Hide { inside } => {
                let hidden = umount2(&inside, MntFlags::MNT_DETACH);
                let failed = |error| failed(format!("unmount {}: {error}", inside.display()));
                (hidden.map_or_else(failed, |()| InitReply::Done), None)
            }
            InitRequest::Nest { .. } => return,
        };
        let attached: Vec<BorrowedFd<'_>> = attached.into_iter().collect();
        let _ = reply(first.as_fd(), &answer, &attached);
    }

    fn nest(&self, control: OwnedFd, own_network: bool, usage: Usage) -> io::Result<()> {
        let (flags, network) = if own_network {
            (OWN_NAMESPACES | CloneFlags::CLONE_NEWNET, OwnNetwork::Yes)
        } else {
            (OWN_NAMESPACES, OwnNetwork::No)
        };
        match process::fork_with(flags)? {
            Side::Child => process::child_main(vec![control], |mut kept| {
                let own = Own {
                    network,
                    users: false,
                };
                run(kept.pop(), self.filters, own, usage)
            }),
            Side::Parent(_) => Ok(()),
        }
    }

    /// A program that has just ended is no error.
    fn signal(&self, number: i32) -> InitReply {
        let programs = self.programs.iter().map(|(pid, _)| *pid);
        let sent = Signal::try_from(number).and_then(|signal| {
            programs
                .chain(entered())
                .try_for_each(|pid| match kill(pid, signal) {
                    Err(Errno::ESRCH) => Ok(()),
                    sent => sent,
                })
        });
        sent.map_or_else(failed, |()| InitReply::Done)
    }

    fn exec(&self, spec: &ExecSpec, mut fds: Vec<OwnedFd>) -> io::Result<Pid> {
        let path = find_program(spec);
        let program = Program::new(&path, &spec.arguments, &spec.environment)?;
        let cgroup_files = fds.split_off(fds.len().saturating_sub(spec.cgroup_files));
        match process::fork_with(CloneFlags::empty())? {
            Side::Parent(pid) => Ok(pid),
            Side::Child => {
                let error = match self.become_unprivileged(spec, &cgroup_files) {
                    Ok(()) => program.exec(&fds),
                    Err(error) => error,
                };
                // The daemon reads the log, which is the program's descriptor 2.
                if let Some(log) = fds.get(2) {
                    let _ = write(
                        log,
                        format!("cannot start {}: {error}\n", spec.path).as_bytes(),
                    );
                }
                // As in a shell: 127 for not found, 126 for not executable.
                process::exit_now(match error.kind() {
                    io::ErrorKind::NotFound => 127,
                    _ => 126,
                })
            }
        }
    }

    fn become_unprivileged(&self, spec: &ExecSpec, cgroup_files: &[OwnedFd]) -> io::Result<()> {
        for file in cgroup_files {
            write(file, b"0")?;
        }
        setsid()?;
        chdir(&spec.cwd)?;
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
        // Also what the daemon was started with: a shell without job control ignores SIGQUIT in its background jobs.
        let fixed = [Signal::SIGKILL, Signal::SIGSTOP];
        for signal in Signal::iterator().filter(|signal| !fixed.contains(signal)) {
            process::default_signal(signal)?;
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
        self.filters.unsupported.install()?;
        self.filters.without_effect.install()?;
        if spec.template && spec.user.is_some() {
            self.filters.own_user.install()?;
        }
        if !spec.template && !spec.own_filter {
            self.filters.worker.install()?;
        }
        Ok(())
    }

    /// Reaps every process that has ended and reports the ends of programs. Orphans of user code are reaped here, too.
    fn reap(&mut self) -> io::Result<()> {
        loop {
            let (pid, code, ended_by) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, Some(code), None),
                Ok(WaitStatus::Signaled(pid, ended_by, _)) => (pid, None, Some(ended_by as i32)),
                Ok(WaitStatus::StillAlive) => return Ok(()),
                Err(Errno::ECHILD) => {
                    for heard_by in self.resting.drain(..) {
                        // An error means that the caller is gone.
                        let _ = reply(heard_by.as_fd(), &InitReply::Done, &[]);
                    }
                    return Ok(());
                }
                Ok(_) | Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            };
            if let Some(at) = self
                .programs
                .iter()
                .position(|(program, _)| *program == pid)
            {
                let (_, heard_by) = self.programs.swap_remove(at);
                let exited = InitReply::Exited {
                    code,
                    signal: ended_by,
                };
                // An error means that the caller is gone.
                let _ = reply(heard_by.as_fd(), &exited, &[]);
            }
        }
    }
}

/// Searches for a program whose name has no slash on the program's own PATH, as execvp(3) does.
fn find_program(spec: &ExecSpec) -> String {
    let found = || {
        let (_, path) = spec.environment.iter().find(|(key, _)| key == "PATH")?;
        path.split(':')
            .map(|folder| Path::new(folder).join(&spec.path))
            .find(|file| access(file, AccessFlags::X_OK).is_ok() && file.is_file())
            .map(|file| file.display().to_string())
    };
    if spec.path.contains('/') {
        return spec.path.clone();
    }
    found().unwrap_or_else(|| spec.path.clone())
}

/// Resource limits of every process in a sandbox, in addition to the cgroup's. No core dumps: they could fill the disk, and have the
/// values of secrets. A limit of 0 does not stop those that the kernel pipes to a program, but a limit of 1 does, and no file is as
/// short (core(5); `do_coredump` in fs/coredump.c).
/// Queued signals and timers are counted for the user on the whole machine.
const LIMITS: [(Resource, u64); 4] = [
    (Resource::RLIMIT_CORE, 1),
    (Resource::RLIMIT_NOFILE, 4096),
    (Resource::RLIMIT_MEMLOCK, 64 * 1024),
    (Resource::RLIMIT_SIGPENDING, 1024),
];

/// The processes that were forked into the sandbox by a template: their parent is not in its PID namespace, and so the kernel says that
/// it is 0 (pid_namespaces(7)). Orphans have this init as their parent.
fn entered() -> impl Iterator<Item = Pid> {
    Stat::of_all()
        .filter(|stat| stat.pid != 1 && stat.parent == 0)
        .map(|stat| Pid::from_raw(stat.pid))
}

/// What `/proc/PID/stat` says of a process (proc_pid_stat(5)).
struct Stat {
    pid: i32,
    parent: i32,
    /// When it began, ticks of the clock since the machine's start.
    begun: u64,
}

impl Stat {
    /// Of all processes in the sandbox, and of those nested in it.
    fn of_all() -> impl Iterator<Item = Self> {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read(entry.path().join("stat")).ok()?;
            Self::parse(pid, &stat)
        })
    }

    /// The name of the program, which comes first, may have any byte.
    fn parse(pid: i32, stat: &[u8]) -> Option<Self> {
        let name_end = stat.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(stat.get(name_end + 1..)?).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        let parent = fields.nth(1)?.parse().ok()?;
        let begun = fields.nth(17)?.parse().ok()?;
        Some(Self { pid, parent, begun })
    }
}

/// Kills what still runs, removes IPC objects, and empties the writable folders.
fn clean(usage: Usage) -> Result<(), String> {
    // Every process but this one. The worker's own process was reaped before the daemon sent the request; orphans are reaped
    // here.
    for _ in 0..CLEAN_ROUNDS_MAX {
        match kill(Pid::from_raw(-1), Signal::SIGKILL) {
            Err(Errno::ESRCH) => {
                empty(usage.folders)?;
                return begin_pids_at(usage.first_pid);
            }
            Err(error) => return Err(format!("processes that cannot be killed: {error}")),
            Ok(()) => match waitpid(None, None) {
                Ok(_) | Err(Errno::EINTR) => {}
                // A process is left that is not a child: its parent outside has not reaped it yet.
                Err(Errno::ECHILD) => {
                    return Err("a process whose parent is outside the sandbox".to_owned());
                }
                Err(error) => return Err(format!("processes that cannot be reaped: {error}")),
            },
        }
    }
    Err("processes that keep coming back".to_owned())
}

const CLEAN_ROUNDS_MAX: usize = 10_000;

fn empty(folders: Folders) -> Result<(), String> {
    sysv::remove_all().map_err(|error| format!("System V IPC objects: {error}"))?;
    secrets::hide().map_err(|error| format!("the secrets: {error}"))?;
    folders::empty(folders)
}

/// Attaches the spawner's copy of a mount. Running programs see it, too.
fn show(inside: &Path, tree: Option<OwnedFd>) -> InitReply {
    let Some(tree) = tree else {
        return failed("the descriptor of the mount is missing");
    };
    match trees::attach(tree, inside) {
        Ok(()) => InitReply::Done,
        Err(error) => failed(format!("mount at {}: {error}", inside.display())),
    }
}

fn failed(error: impl std::fmt::Display) -> InitReply {
    InitReply::Failed {
        problem: error.to_string(),
        errno: None,
    }
}

/// With the kernel's error number, so that the daemon can tell a server that does not listen yet from other errors.
fn failed_call(error: &io::Error) -> InitReply {
    InitReply::Failed {
        problem: error.to_string(),
        errno: error.raw_os_error(),
    }
}

fn reply(control: BorrowedFd<'_>, reply: &InitReply, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(reply)?;
    seqpacket::send(control, &bytes, fds)
}
