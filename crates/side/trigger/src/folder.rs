//! A folder that somebody writes files into. A file is received when it is closed after a write or renamed into the folder (inotify(7),
//! IN_CLOSE_WRITE and IN_MOVED_TO), and at the start and after an overflow of inotify's queue, when the folder is read. Which files were
//! received is stored with their invocations in one transaction, so each state of a file is received once.
//!
//! Only regular files in the folder itself count. No link is followed: neither in it, nor on the way from the operator's folder to it.
//!
//! Every call to the folder's file system is one of [`Lane`], because the file system may not answer.

mod odd;
mod watch;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::libc::{O_CLOEXEC, O_DIRECTORY};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use pilot_model::calendar::Utc;
use pilot_model::ports::Mark;
use pilot_model::trigger::FolderSpec;
use serde_json::json;
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

use crate::context::Context;
use crate::file_calls::{Lane, Progress};
use crate::status::now_ms;
use odd::OddNames;
use watch::{Seen, Watch};

/// Listens until the trigger is stopped.
pub(crate) async fn run(mut context: Context, spec: FolderSpec) {
    let path = PathBuf::from(&spec.path);
    let connections = Arc::clone(&context.shared.connections);
    let (name, root) = match connections.folder(context.function.as_str(), &path) {
        Ok(found) => found,
        Err(problem) => {
            context.status.refused(&problem);
            return context.stopped().await;
        }
    };
    let watched = Watched {
        bucket: name.to_owned(),
        root: root.to_owned(),
        path,
        suffix: spec.suffix.unwrap_or_default(),
        lane: context.shared.file_calls.lane(&context.scope),
    };
    let Some(known) = known(&mut context).await else {
        return;
    };
    let mut files = Files {
        known,
        ..Files::default()
    };
    loop {
        let problem = match listen(&mut context, &watched, &mut files).await {
            Ok(()) => return,
            Err(problem) => problem,
        };
        if !context.back_off(&problem).await {
            return;
        }
    }
}

/// Where the files lie.
#[derive(Debug, Clone)]
struct Watched {
    /// The operator's name for the folder of the connection.
    bucket: String,
    /// That folder.
    root: PathBuf,
    /// The folder of the trigger, which is in it.
    path: PathBuf,
    suffix: String,
    /// For calls to its file system.
    lane: Lane,
}

/// What tells one state of a file from another.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Signature {
    inode: u64,
    size: u64,
    modified_ns: i128,
}

#[derive(Debug, Default)]
struct Files {
    /// The received ones, as they were.
    known: HashMap<String, String>,
    /// Those to receive.
    pending: BTreeMap<String, Signature>,
    /// Those that cannot be received.
    odd: OddNames,
}

/// The stored state. `None`: it must end.
async fn known(context: &mut Context) -> Option<HashMap<String, String>> {
    loop {
        match context.shared.store.marks(&context.scope).await {
            Ok(marks) => return Some(marks.into_iter().collect()),
            Err(problem) => {
                if !context.back_off(&problem).await {
                    return None;
                }
            }
        }
    }
}

/// Listens until something fails. `Ok`: it must end.
async fn listen(context: &mut Context, watched: &Watched, files: &mut Files) -> Result<(), String> {
    let wanted = watched.clone();
    let opened = watched.call(move |_| open(&wanted)).await?;
    let folder = Arc::new(opened?);
    let at = Arc::clone(&folder);
    let watch = watched.call(move |_| Watch::begin(&through(&at))).await?;
    let mut watch =
        watch.map_err(|error| format!("cannot watch {}: {error}", watched.path.display()))?;
    let mut read_again_at = read_all(context, watched, &folder, files).await?;
    let mut is_deleted_at = Instant::now() + DELETED_EVERY;
    loop {
        hand_on(context, watched, files).await?;
        context.works();
        // Points in time, which files that keep arriving do not move.
        let seen = tokio::select! {
            () = context.stopped() => return Ok(()),
            seen = watch.next() => seen.map_err(|error| {
                format!("cannot watch {}: {error}", watched.path.display())
            })?,
            () = sleep_until(read_again_at.unwrap_or(is_deleted_at)), if read_again_at.is_some() => {
                Seen::Lost
            }
            // A folder that is open is not deleted for inotify.
            () = sleep_until(is_deleted_at) => {
                is_deleted_at = Instant::now() + DELETED_EVERY;
                let at = Arc::clone(&folder);
                match watched.call(move |_| is_deleted(&at)).await? {
                    true => Seen::Gone,
                    false => continue,
                }
            }
        };
        match seen {
            Seen::Names(names) => look(context, watched, &folder, files, names).await?,
            Seen::Lost => read_again_at = read_all(context, watched, &folder, files).await?,
            Seen::Gone => return Err(format!("{} is gone", watched.path.display())),
        }
    }
}

impl Watched {
    /// Makes a call to its file system.
    ///
    /// # Errors
    /// The folder does not answer.
    async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Progress) -> T + Send + 'static,
    ) -> Result<T, String> {
        self.lane.call(&self.path, call).await
    }
}

fn is_deleted(folder: &File) -> bool {
    folder.metadata().is_ok_and(|folder| folder.nlink() == 0)
}

/// Opens the folder. What it really is must lie in the operator's folder.
fn open(watched: &Watched) -> Result<File, String> {
    let shown = watched.path.display();
    let cannot = |error: io::Error| format!("cannot open the folder {shown}: {error}");
    let folder = OpenOptions::new()
        .read(true)
        .custom_flags(O_DIRECTORY | O_CLOEXEC)
        .open(&watched.path)
        .map_err(cannot)?;
    let root = fs::canonicalize(&watched.root).map_err(cannot)?;
    let real = fs::read_link(through(&folder)).map_err(cannot)?;
    if real.starts_with(&root) {
        return Ok(folder);
    }
    Err(format!(
        "{shown} is {}, which is not in {}: a link leads out of the connection's folder",
        real.display(),
        root.display()
    ))
}

/// A path to what is open, whatever its name leads to now.
fn through(folder: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()))
}

/// Reads the whole folder. Returns when to read it again if files were left out because they were written a moment ago: somebody may
/// still do that, and nothing tells.
async fn read_all(
    context: &mut Context,
    watched: &Watched,
    folder: &Arc<File>,
    files: &mut Files,
) -> Result<Option<Instant>, String> {
    let (folder, suffix) = (Arc::clone(folder), watched.suffix.clone());
    let read = watched.call(move |progress| all(&folder, &suffix, progress));
    let read = read.await?;
    let read = read.map_err(|error| format!("cannot read {}: {error}", watched.path.display()))?;
    let (found, odd) = read;
    files.odd.replace(odd, &watched.path, &context.status);
    let settled_ns = i128::from(now_ms() - SETTLED_AFTER_MS) * 1_000_000;
    let mut young = false;
    let gone = files.known.keys().chain(files.pending.keys());
    let gone: BTreeSet<String> = gone
        .filter(|name| !found.contains_key(*name))
        .cloned()
        .collect();
    for (name, signature) in found {
        if files.known.get(&name) == Some(&signature.to_string()) {
            continue;
        }
        // A time in the future says nothing.
        let is_young = signature.modified_ns > settled_ns
            && signature.modified_ns <= i128::from(now_ms()) * 1_000_000;
        if is_young {
            young = true;
        } else {
            files.pending.insert(name, signature);
        }
    }
    forget(context, files, gone).await?;
    Ok(young.then(|| Instant::now() + SETTLED_AFTER))
}

/// Looks at some files.
async fn look(
    context: &mut Context,
    watched: &Watched,
    folder: &Arc<File>,
    files: &mut Files,
    names: BTreeSet<OsString>,
) -> Result<(), String> {
    let (at, suffix) = (Arc::clone(folder), watched.suffix.clone());
    let looked = watched.call(move |progress| {
        let names = names.into_iter();
        let names = names.filter(|name| odd::ends_with(name, &suffix));
        let folder = through(&at);
        names
            .map(|name| {
                let signature = signature(&folder.join(&name));
                progress.made();
                (name, signature)
            })
            .collect::<Vec<_>>()
    });
    let mut gone = BTreeSet::new();
    for (name, signature) in looked.await? {
        let name = match name.into_string() {
            Ok(name) => name,
            Err(odd) => {
                say_odd(context, watched, files, odd, signature.is_some());
                continue;
            }
        };
        match signature {
            None => _ = gone.insert(name),
            Some(signature) if files.known.get(&name) == Some(&signature.to_string()) => {}
            Some(_) if files.pending.len() >= FILES_MAX => {
                return Err(too_many(watched));
            }
            Some(signature) => _ = files.pending.insert(name, signature),
        }
    }
    forget(context, files, gone).await
}

/// A file that cannot be received came, or is gone.
fn say_odd(
    context: &Context,
    watched: &Watched,
    files: &mut Files,
    name: OsString,
    is_there: bool,
) {
    if !is_there {
        files.odd.forget(&name);
    } else if files.odd.add(name.clone()) {
        let problem = odd::problem(&watched.path, &name);
        context.status.failed(&problem);
    }
}

/// Files that are not there any more need not be remembered.
async fn forget(
    context: &mut Context,
    files: &mut Files,
    gone: BTreeSet<String>,
) -> Result<(), String> {
    let mut marks: Vec<Mark> = Vec::new();
    for name in gone {
        files.pending.remove(&name);
        if files.known.remove(&name).is_some() {
            marks.push(context.mark(&name, None));
        }
    }
    for part in marks.chunks(MARKS_OF_A_COMMIT) {
        context.shared.store.change(part.to_vec()).await?;
    }
    Ok(())
}

/// Puts what is pending into the queue. `Ok` also if the trigger must end.
async fn hand_on(
    context: &mut Context,
    watched: &Watched,
    files: &mut Files,
) -> Result<(), String> {
    while let Some((name, signature)) = files.pending.first_key_value() {
        let waiting = files.pending.len() as u64;
        let modified_ms = i64::try_from(signature.modified_ns / 1_000_000).ok();
        context.status.waits(waiting, modified_ms);
        if context.is_stopped() {
            return Ok(());
        }
        if files.known.len() >= FILES_MAX {
            return Err(too_many(watched));
        }
        let (name, value) = (name.clone(), signature.to_string());
        let id = Uuid::new_v4().to_string();
        let request = context.request(&id, event(watched, &name, signature));
        let mark = context.mark(&name, Some(value.clone()));
        let accepted = context
            .shared
            .store
            .accept_marked(request, Some(mark))
            .await;
        accepted.map_err(|refusal| refusal.to_string())?;
        files.pending.remove(&name);
        files.known.insert(name, value);
        context.status.received(1);
        context.status.ran();
    }
    context.status.waits(0, None);
    Ok(())
}

fn too_many(watched: &Watched) -> String {
    format!(
        "{} has more than {FILES_MAX} files: remove those that are done",
        watched.path.display()
    )
}

/// The regular files of a folder, and those whose names cannot be in an event.
fn all(
    folder: &File,
    suffix: &str,
    progress: &Progress,
) -> io::Result<(HashMap<String, Signature>, OddNames)> {
    let (mut found, mut odd) = (HashMap::new(), OddNames::default());
    for entry in fs::read_dir(through(folder))? {
        let entry = entry?;
        progress.made();
        if !odd::ends_with(&entry.file_name(), suffix) {
            continue;
        }
        if found.len() >= FILES_MAX {
            let problem = format!("it has more than {FILES_MAX} files: remove those that are done");
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, problem));
        }
        let Some(signature) = signature(&entry.path()) else {
            continue;
        };
        match entry.file_name().into_string() {
            Ok(name) => _ = found.insert(name, signature),
            Err(name) => _ = odd.add(name),
        }
    }
    Ok((found, odd))
}

/// `None`: it is no regular file, or gone.
fn signature(path: &Path) -> Option<Signature> {
    let metadata = fs::symlink_metadata(path).ok()?;
    metadata.is_file().then(|| Signature {
        inode: metadata.ino(),
        size: metadata.size(),
        modified_ns: i128::from(metadata.mtime()) * 1_000_000_000
            + i128::from(metadata.mtime_nsec()),
    })
}

impl std::fmt::Display for Signature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}-{}", self.inode, self.size, self.modified_ns)
    }
}

/// S3's event notification of a new object. The bucket is the connection, the key is the path in its folder.
fn event(watched: &Watched, name: &str, signature: &Signature) -> String {
    let path = watched.path.join(name);
    let plain = path.strip_prefix(&watched.root).unwrap_or(&path);
    let plain = plain.to_string_lossy();
    let key = utf8_percent_encode(&plain, IN_KEY).to_string();
    let modified_ms = u64::try_from(signature.modified_ns / 1_000_000).unwrap_or_default();
    let utc = Utc::of_unix_ms(modified_ms);
    let time = format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        utc.year, utc.month, utc.day, utc.hour, utc.minute, utc.second, utc.millisecond
    );
    json!({"Records": [{
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "awsRegion": "us-east-1",
        "eventTime": time,
        "eventName": "ObjectCreated:Put",
        "userIdentity": {"principalId": "pilotlight"},
        "requestParameters": {"sourceIPAddress": "127.0.0.1"},
        "responseElements": {},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": watched.path,
            "bucket": {
                "name": watched.bucket,
                "ownerIdentity": {"principalId": "pilotlight"},
                "arn": format!("arn:aws:s3:::{}", watched.bucket),
            },
            "object": {
                "key": key.replace("%20", "+"),
                "size": signature.size,
                "eTag": format!("{:x}-{:x}", signature.inode, signature.modified_ns),
                "sequencer": format!("{:016X}", signature.modified_ns),
            },
        },
        "pilot": {"path": path, "key": plain},
    }]})
    .to_string()
}

/// Files that are remembered, and those that wait.
const FILES_MAX: usize = 100_000;
/// Others wait while a commit is written.
const MARKS_OF_A_COMMIT: usize = 1000;
/// How often a quiet folder is looked at, because somebody may have deleted it and made it again.
const DELETED_EVERY: Duration = Duration::from_secs(5);
/// A file that was not written for this long is complete, unless inotify says more.
const SETTLED_AFTER_MS: i64 = 2000;
const SETTLED_AFTER: Duration = Duration::from_millis(SETTLED_AFTER_MS.unsigned_abs());
/// S3 encodes the keys of its events like a form, but leaves `/`.
const IN_KEY: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'*')
    .remove(b'/');

#[cfg(test)]
mod tests;
