//! The root file system of sandboxes: the host's `/usr` and related folders read-only, interpreter, environment and code, some
//! files of `/etc`, and five devices. The spawner's helper builds it on a tmpfs in a mount namespace of its own, with the
//! host's privileges. Therefore nobody inside can remove a read-only flag (mount_namespaces(7): mounts from a more privileged
//! namespace are locked).
//!
//! Not here: `/proc`, `/tmp` and `/dev/shm`, which each sandbox's init mounts, and `/run/secrets`, which it mounts for a function that has
//! secrets as files.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::{Uid, chdir, pivot_root};
use pilot_sys::mount::Restrictions;
use serde::{Deserialize, Serialize};

use crate::places::{
    CODE_INSIDE, LIBRARIES_INSIDE, NODE_MODULES_INSIDE, PACKAGES_INSIDE, RESOLVER_INSIDE,
};

/// The contents of a root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RootSpec {
    /// An empty folder of the host where it is mounted.
    pub(crate) mount_point: PathBuf,
    /// Host folders to mount read-only: (host, inside).
    pub(crate) shown: Vec<(PathBuf, PathBuf)>,
    /// A host folder that is mounted with the modes that it has: (host, inside). Only builds have one.
    pub(crate) writable: Option<(PathBuf, PathBuf)>,
    /// User id inside, for `/etc/passwd`.
    pub(crate) user: u32,
    /// The host's file that becomes `/etc/resolv.conf`.
    pub(crate) resolver: Option<PathBuf>,
    /// Whether it has empty folders for the libraries of code and layers, which forks see with the libraries in them.
    pub(crate) libraries: bool,
}

/// A step that failed.
#[derive(Debug, thiserror::Error)]
#[error("{step} {path}: {source}", path = path.display())]
pub(crate) struct RootError {
    step: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// Mounted as on the host; a link on the host becomes a link (`/lib` → `usr/lib`).
const SYSTEM_FOLDERS: [&str; 6] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"];

/// What a sandbox's host is called. Its init sets it.
pub(crate) const HOST_NAME: &str = "pilotlight";

/// Files and folders of `/etc` that programs need to run, load libraries, know the time zone and verify certificates. No
/// secrets.
const ETC_SHOWN: [&str; 14] = [
    "alternatives",
    "ca-certificates",
    "fonts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "os-release",
    "pki",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
];

/// The settings of Debian's Java, whose files below `/usr` are links to them (`java.security`): without them it can hash nothing. Shown
/// to programs, which may be Java. Other languages' settings may have passwords (php.ini).
pub(crate) fn java_settings() -> Vec<(PathBuf, PathBuf)> {
    let entries = fs::read_dir("/etc").into_iter().flatten().flatten();
    let of_java = |name: &str| name.starts_with("java");
    let found = entries.filter(|entry| entry.file_name().to_str().is_some_and(of_java));
    found
        .filter_map(|entry| Some((fs::canonicalize(entry.path()).ok()?, entry.path())))
        .collect()
}

/// Made in every root. Something is mounted at most of them.
const FOLDERS: [&str; 10] = [
    "proc",
    "tmp",
    "dev",
    "dev/shm",
    "run",
    "run/secrets",
    "var",
    "etc",
    "etc/ssl",
    "opt",
];

const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];

/// Of everything that is shown.
const UNUSABLE: Restrictions = Restrictions {
    read_only: true,
    no_devices: true,
    no_programs: false,
};

/// A device on a read-only mount can be written to, but its mode, owner and times cannot be changed.
const DEVICE: Restrictions = Restrictions {
    read_only: true,
    no_devices: false,
    no_programs: true,
};

const READ_ONLY: MsFlags = MsFlags::MS_RDONLY
    .union(MsFlags::MS_NOSUID)
    .union(MsFlags::MS_NODEV);

/// Builds the root and makes it this process's root. The process must be in its own mount namespace. `/` belongs to `owner`: programs
/// may refuse folders below one that belongs to an unknown user.
pub(crate) fn enter(spec: &RootSpec, owner: Uid) -> Result<(), RootError> {
    let none: Option<&str> = None;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    step("make private", Path::new("/"), || {
        mount(none, "/", none, private, none)
    })?;
    let root = spec.mount_point.as_path();
    step("mount tmpfs on", root, || {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(
            Some("tmpfs"),
            root,
            Some("tmpfs"),
            flags,
            Some(format!("mode=0755,size=1m,uid={owner},gid={owner}").as_str()),
        )
    })?;
    for folder in SYSTEM_FOLDERS {
        show_system_folder(root, Path::new(folder))?;
    }
    for folder in FOLDERS {
        make_folder(&root.join(folder))?;
    }
    for place in [CODE_INSIDE, PACKAGES_INSIDE, NODE_MODULES_INSIDE] {
        make_folder(&beneath(root, Path::new(place)))?;
    }
    if spec.libraries {
        for place in LIBRARIES_INSIDE {
            make_folder(&beneath(root, Path::new(place)))?;
        }
    }
    for (link, target) in [
        ("var/tmp", "/tmp"),
        ("var/run", "/run"),
        ("dev/fd", "/proc/self/fd"),
        ("dev/stdin", "/proc/self/fd/0"),
        ("dev/stdout", "/proc/self/fd/1"),
        ("dev/stderr", "/proc/self/fd/2"),
    ] {
        step("link", &root.join(link), || {
            symlink(target, root.join(link))
        })?;
    }
    write_etc(root, spec)?;
    show_devices(root)?;
    for (host, inside) in &spec.shown {
        show(host, &beneath(root, inside))?;
    }
    if let Some((host, inside)) = &spec.writable {
        show_as(
            host,
            &beneath(root, inside),
            Restrictions {
                read_only: false,
                ..UNUSABLE
            },
        )?;
    }
    // A procfs must be visible here, or the sandbox's init may not mount its own (mount_too_revealing() in fs/namespace.c); the
    // init's covers this one.
    let proc = root.join("proc");
    step("bind /proc on", &proc, || {
        mount(
            Some("/proc"),
            &proc,
            none,
            MsFlags::MS_BIND | MsFlags::MS_REC,
            none,
        )
    })?;
    step("make read-only", root, || {
        mount(
            none,
            root,
            none,
            MsFlags::MS_REMOUNT | MsFlags::MS_BIND | READ_ONLY,
            none,
        )
    })?;
    // pivot_root(2), "pivot_root(".", ".")": the old root ends up on top of the new one and is unmounted.
    step("enter", root, || chdir(root))?;
    step("pivot to", root, || pivot_root(".", "."))?;
    step("detach the host below", root, || {
        umount2(".", MntFlags::MNT_DETACH)
    })?;
    step("enter", Path::new("/"), || chdir("/"))
}

fn show_devices(root: &Path) -> Result<(), RootError> {
    let none: Option<&str> = None;
    for device in DEVICES {
        let (host, inside) = (
            Path::new("/dev").join(device),
            root.join("dev").join(device),
        );
        step("create", &inside, || fs::write(&inside, ""))?;
        step("bind", &inside, || {
            mount(Some(&host), &inside, none, MsFlags::MS_BIND, none)
        })?;
        step("restrict", &inside, || restrict(&inside, DEVICE))?;
    }
    Ok(())
}

fn show_system_folder(root: &Path, folder: &Path) -> Result<(), RootError> {
    let Ok(metadata) = fs::symlink_metadata(folder) else {
        return Ok(());
    };
    if metadata.is_symlink() {
        let link = beneath(root, folder);
        return step("copy link", folder, || {
            symlink(fs::read_link(folder)?, &link)
        });
    }
    show(folder, &beneath(root, folder))
}

/// Files of `/etc` with the user of a sandbox's processes (passwd(5), group(5)).
pub(crate) fn users_shown(user: u32) -> [(&'static str, String); 2] {
    let passwd = format!(
        "root:x:0:0:root:/:/sbin/nologin\nsbx_user:x:{user}:{user}:function:/tmp:/sbin/nologin\n"
    );
    let group = format!("root:x:0:\nsbx_user:x:{user}:\n");
    [("passwd", passwd), ("group", group)]
}

fn write_etc(root: &Path, spec: &RootSpec) -> Result<(), RootError> {
    let files = [
        (
            "hosts",
            format!("127.0.0.1 localhost {HOST_NAME}\n::1 localhost\n"),
        ),
        (
            "nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files dns\n".to_owned(),
        ),
    ];
    for (name, text) in files.into_iter().chain(users_shown(spec.user)) {
        let path = root.join("etc").join(name);
        step("write", &path, || fs::write(&path, text))?;
    }
    if spec.resolver.is_none() {
        let place = beneath(root, Path::new(RESOLVER_INSIDE));
        step("create", &place, || fs::write(&place, ""))?;
    }
    let shown = ETC_SHOWN.map(|name| (Path::new("/etc").join(name), name));
    let resolver = spec.resolver.clone().map(|file| (file, "resolv.conf"));
    for (host, name) in shown.into_iter().chain(resolver) {
        // Follow links: /etc/localtime and /etc/resolv.conf often are links.
        if let Ok(host) = fs::canonicalize(host) {
            show(&host, &root.join("etc").join(name))?;
        }
    }
    Ok(())
}

/// Mounts `host` at `inside`, read-only, without devices and set-user-id bits.
fn show(host: &Path, inside: &Path) -> Result<(), RootError> {
    show_as(host, inside, UNUSABLE)
}

fn show_as(host: &Path, inside: &Path, restricted: Restrictions) -> Result<(), RootError> {
    let metadata = step("look at", host, || fs::metadata(host))?;
    if metadata.is_dir() {
        // Below the layers, which are read-only, the folder is there already.
        if !inside.is_dir() {
            make_folder(inside)?;
        }
    } else {
        if let Some(parent) = inside.parent() {
            make_folder(parent)?;
        }
        step("create", inside, || fs::write(inside, ""))?;
    }
    let none: Option<&str> = None;
    step("bind", host, || {
        mount(
            Some(host),
            inside,
            none,
            MsFlags::MS_BIND | MsFlags::MS_REC,
            none,
        )
    })?;
    step("restrict", inside, || restrict(inside, restricted))
}

/// Restricts a mount and everything that is mounted below it: what is read-only at `/usr` must not be writable at a mount point
/// below `/usr`.
fn restrict(inside: &Path, restrictions: Restrictions) -> io::Result<()> {
    match pilot_sys::mount::restrict(inside, restrictions) {
        // Linux before 5.12, or a container's filter that does not know the call.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            let mounts = fs::read_to_string("/proc/self/mountinfo")?;
            for (place, has) in mounts_at_and_below(inside, &mounts) {
                let none: Option<&str> = None;
                let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | has | as_flags(restrictions);
                mount(none, &place, none, flags, none)?;
            }
            Ok(())
        }
        done => done,
    }
}

fn as_flags(restrictions: Restrictions) -> MsFlags {
    let mut flags = MsFlags::MS_NOSUID;
    flags.set(MsFlags::MS_RDONLY, restrictions.read_only);
    flags.set(MsFlags::MS_NODEV, restrictions.no_devices);
    flags.set(MsFlags::MS_NOEXEC, restrictions.no_programs);
    flags
}

/// The mounts of a `mountinfo` (proc_pid_mountinfo(5)) at and below a path, with the flags that a remount must repeat: without the
/// host's privileges it may not take one away.
fn mounts_at_and_below(path: &Path, mounts: &str) -> Vec<(PathBuf, MsFlags)> {
    let mount_of = |line: &str| {
        let mut fields = line.split(' ').skip(4);
        let place = PathBuf::from(unescaped(fields.next()?));
        let mut flags = MsFlags::empty();
        for option in fields.next()?.split(',') {
            flags |= match option {
                "ro" => MsFlags::MS_RDONLY,
                "nosuid" => MsFlags::MS_NOSUID,
                "nodev" => MsFlags::MS_NODEV,
                "noexec" => MsFlags::MS_NOEXEC,
                "noatime" => MsFlags::MS_NOATIME,
                "nodiratime" => MsFlags::MS_NODIRATIME,
                "relatime" => MsFlags::MS_RELATIME,
                _ => MsFlags::empty(),
            };
        }
        place.starts_with(path).then_some((place, flags))
    };
    mounts.lines().filter_map(mount_of).collect()
}

/// A path of `mountinfo`: the kernel writes blanks, tabs, line ends and backslashes as three octal digits.
fn unescaped(field: &str) -> std::ffi::OsString {
    let bytes = field.as_bytes();
    let mut text = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digits = bytes.get(at + 1..at + 4).filter(|_| bytes[at] == b'\\');
        let code = digits
            .and_then(|digits| str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        text.push(code.unwrap_or(bytes[at]));
        at += if code.is_some() { 4 } else { 1 };
    }
    std::ffi::OsString::from_vec(text)
}

fn make_folder(path: &Path) -> Result<(), RootError> {
    step("create", path, || {
        fs::create_dir_all(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))
    })
}

/// `path`, which is absolute, below `root`.
fn beneath(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn step<T, E: Into<io::Error>>(
    step: &'static str,
    path: &Path,
    run: impl FnOnce() -> Result<T, E>,
) -> Result<T, RootError> {
    run().map_err(|source| RootError {
        step,
        path: path.to_owned(),
        source: source.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mounts_below_a_folder_are_found_with_their_flags() {
        let mounts = "\
            22 1 0:21 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            30 22 0:30 / /r/usr rw,noatime - tmpfs tmpfs rw\n\
            31 30 0:31 / /r/usr/local/a\\040b ro,nosuid,nodev,noexec,nodiratime master:3 - tmpfs tmpfs rw\n\
            32 22 0:32 / /r/usrs rw - tmpfs tmpfs rw\n";
        let (none, all) = (
            MsFlags::MS_NOATIME,
            READ_ONLY | MsFlags::MS_NOEXEC | MsFlags::MS_NODIRATIME,
        );
        assert_eq!(
            mounts_at_and_below(Path::new("/r/usr"), mounts),
            [
                (PathBuf::from("/r/usr"), none),
                (PathBuf::from("/r/usr/local/a b"), all),
            ]
        );
    }
}
