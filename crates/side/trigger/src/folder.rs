//! A folder that somebody writes files into. A file is received when it is closed after a write or renamed into the folder
//! (inotify(7), IN_CLOSE_WRITE and IN_MOVED_TO), and at the start and after an overflow of inotify's queue, when the folder is
//! read. Which files were received is stored with their invocations in one transaction, so each state of a file is received once.
//! A file is gone if a folder that can be read does not have it (ENOENT). Any other error of the file system says nothing about a
//! file.
//!
//! Only regular files in the folder itself count. No link is followed: neither in it, nor on the way from the operator's folder to it.
//!
//! Every call to the folder's file system is one of [`Lane`], because the file system may not answer.

mod known;
mod odd;
mod watch;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::libc::{O_CLOEXEC, O_DIRECTORY};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use pilot_model::calendar::Utc;
use pilot_model::trigger::FolderSpec;
use serde_json::json;
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

use crate::context::Context;
use crate::file_calls::{Lane, Progress};
use crate::status::now_ms;
use known::{Change, FolderId, Known};
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
        pending: BTreeMap::new(),
        odd: OddNames::default(),
        problem: None,
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

#[derive(Debug)]
struct Files {
    /// The received ones, as they were.
    known: Known,
    /// Those to receive.
    pending: BTreeMap<String, Signature>,
    /// Those that cannot be received.
    odd: OddNames,
    /// Why some of them cannot be looked at.
    problem: Option<String>,
}

/// What a folder has.
#[derive(Debug, Default)]
struct Listing {
    /// The regular files.
    found: HashMap<String, Signature>,
    /// Those whose names cannot be in an event.
    odd: OddNames,
    /// What cannot be looked at. It may be anything.
    unclear: HashSet<OsString>,
    /// Why the first of them cannot.
    problem: Option<String>,
}

/// The stored state. `None`: it must end.
async fn known(context: &mut Context) -> Option<Known> {
    loop {
        match context.shared.store.marks(&context.scope).await {
            Ok(marks) => return Some(Known::read(marks)),
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
    let (folder, id) = opened?;
    let folder = Arc::new(folder);
    let at = Arc::clone(&folder);
    let watch = watched.call(move |_| Watch::begin(&through(&at))).await?;
    let mut watch =
        watch.map_err(|error| format!("cannot watch {}: {error}", watched.path.display()))?;
    if files.known.folder() != id {
        files.pending.clear();
        store(context, files.known.enter(id)).await?;
    }
    let mut read_again_at = read_all(context, watched, &folder, files).await?;
    let mut look_again_at = Instant::now() + LOOK_EVERY;
    loop {
        hand_on(context, watched, files).await?;
        // The others have been received.
        if let Some(problem) = files.problem.take() {
            return Err(problem);
        }
        context.works();
        // Points in time, which files that keep arriving do not move.
        let seen = tokio::select! {
            () = context.stopped() => return Ok(()),
            seen = watch.next() => seen.map_err(|error| {
                format!("cannot watch {}: {error}", watched.path.display())
            })?,
            () = sleep_until(read_again_at.unwrap_or(look_again_at)), if read_again_at.is_some() => {
                Seen::Lost
            }
            () = sleep_until(look_again_at) => {
                look_again_at = Instant::now() + LOOK_EVERY;
                leads_to(watched, id).await?;
                store(context, files.known.forget_others()).await?;
                continue;
            }
        };
        match seen {
            Seen::Names(names) => look(context, watched, &folder, files, names).await?,
            Seen::Lost => read_again_at = read_all(context, watched, &folder, files).await?,
            Seen::Gone => return Err(gone(watched)),
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

/// Whether the path still leads to the folder that is watched. inotify does not tell of a disk that is mounted there, of another
/// name of a folder above, or of the end of a folder that is open.
///
/// # Errors
/// It leads to none, or to another one.
async fn leads_to(watched: &Watched, id: FolderId) -> Result<(), String> {
    let path = watched.path.clone();
    let shown = watched.path.display();
    match watched.call(move |_| fs::metadata(path)).await? {
        Ok(there) if FolderId::of(&there) == id => Ok(()),
        Ok(_) => Err(format!("{shown} is another folder now")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(gone(watched)),
        Err(error) => Err(format!("cannot look at {shown}: {error}")),
    }
}

fn gone(watched: &Watched) -> String {
    format!("{} is gone", watched.path.display())
}

/// Opens the folder. What it really is must lie in the operator's folder.
fn open(watched: &Watched) -> Result<(File, FolderId), String> {
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
        let id = FolderId::of(&folder.metadata().map_err(cannot)?);
        return Ok((folder, id));
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
    let (folder, wanted) = (Arc::clone(folder), watched.clone());
    let read = watched.call(move |progress| all(&wanted, &folder, progress));
    let mut listing = read
        .await?
        .map_err(|error| format!("cannot read {}: {error}", watched.path.display()))?;
    let odd = std::mem::take(&mut listing.odd);
    files.odd.replace(odd, &watched.path, &context.status);
    let (changes, young) = files.take_in(listing, now_ms());
    store(context, changes).await?;
    Ok(young.then(|| Instant::now() + SETTLED_AFTER))
}

impl Files {
    /// Compares a listing with what is known. Returns the marks to change, and whether files were written a moment ago.
    fn take_in(&mut self, listing: Listing, now_ms: i64) -> (Vec<Change>, bool) {
        let Listing { found, unclear, .. } = listing;
        self.problem = listing.problem;
        let is_gone = |name: &&String| {
            !found.contains_key(*name) && !unclear.contains(OsStr::new(name.as_str()))
        };
        let gone = self.known.names().chain(self.pending.keys());
        let gone: BTreeSet<String> = gone.filter(is_gone).cloned().collect();
        let mut changes = self.forget(gone);
        let settled_ns = i128::from(now_ms - SETTLED_AFTER_MS) * 1_000_000;
        let mut young = false;
        for (name, signature) in found {
            if self.known.has(&name, &signature.to_string(), &mut changes) {
                continue;
            }
            // A time in the future says nothing.
            let is_young = signature.modified_ns > settled_ns
                && signature.modified_ns <= i128::from(now_ms) * 1_000_000;
            if is_young {
                young = true;
            } else {
                self.pending.insert(name, signature);
            }
        }
        (changes, young)
    }

    /// Files that are not there any more need not be remembered.
    fn forget(&mut self, gone: BTreeSet<String>) -> Vec<Change> {
        let gone = gone.into_iter();
        gone.filter_map(|name| {
            self.pending.remove(&name);
            self.known.forget(&name)
        })
        .collect()
    }
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
    let (mut gone, mut changes) = (BTreeSet::new(), Vec::new());
    for (name, signature) in looked.await? {
        let signature = match signature {
            Ok(signature) => signature,
            Err(error) => {
                files.problem = Some(unclear(&watched.path, &name, &error));
                continue;
            }
        };
        let name = match name.into_string() {
            Ok(name) => name,
            Err(odd) => {
                say_odd(context, watched, files, odd, signature.is_some());
                continue;
            }
        };
        let Some(signature) = signature else {
            gone.insert(name);
            continue;
        };
        if files.known.has(&name, &signature.to_string(), &mut changes) {
            continue;
        }
        if files.pending.len() >= FILES_MAX {
            return Err(too_many(watched));
        }
        files.pending.insert(name, signature);
    }
    changes.extend(files.forget(gone));
    store(context, changes).await
}

/// What is shown for a file that cannot be looked at.
fn unclear(folder: &Path, name: &OsStr, error: &io::Error) -> String {
    format!(
        "cannot look at \"{}\" in {}: {error}",
        name.as_bytes().escape_ascii(),
        folder.display()
    )
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

async fn store(context: &mut Context, changes: Vec<Change>) -> Result<(), String> {
    for part in changes.chunks(MARKS_OF_A_COMMIT) {
        let marks = part.iter();
        let marks = marks.map(|(key, value)| context.mark(key, value.clone()));
        context.shared.store.change(marks.collect()).await?;
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
        if files.known.is_full() {
            let forgotten = files.known.make_room();
            if forgotten.is_empty() {
                return Err(too_many(watched));
            }
            store(context, forgotten).await?;
        }
        let (name, value) = (name.clone(), signature.to_string());
        let id = Uuid::new_v4().to_string();
        let request = context.request(&id, event(watched, &name, signature));
        let mark = context.mark(&files.known.key(&name), Some(value.clone()));
        let accepted = context
            .shared
            .store
            .accept_marked(request, Some(mark))
            .await;
        accepted.map_err(|refusal| refusal.to_string())?;
        files.pending.remove(&name);
        files.known.add(name, value);
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

/// Lists a folder.
fn all(watched: &Watched, folder: &File, progress: &Progress) -> io::Result<Listing> {
    let mut listing = Listing::default();
    for entry in fs::read_dir(through(folder))? {
        let entry = entry?;
        progress.made();
        let name = entry.file_name();
        if !odd::ends_with(&name, &watched.suffix) {
            continue;
        }
        if listing.found.len() + listing.unclear.len() >= FILES_MAX {
            let problem = format!("it has more than {FILES_MAX} files: remove those that are done");
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, problem));
        }
        match signature(&entry.path()) {
            Ok(None) => {}
            Ok(Some(signature)) => match name.into_string() {
                Ok(name) => _ = listing.found.insert(name, signature),
                Err(name) => _ = listing.odd.add(name),
            },
            Err(error) => {
                let problem = || unclear(&watched.path, &name, &error);
                listing.problem.get_or_insert_with(problem);
                listing.unclear.insert(name);
            }
        }
    }
    Ok(listing)
}

/// `None`: it is no regular file, or gone.
fn signature(path: &Path) -> io::Result<Option<Signature>> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(metadata.is_file().then(|| Signature {
        inode: metadata.ino(),
        size: metadata.size(),
        modified_ns: i128::from(metadata.mtime()) * 1_000_000_000
            + i128::from(metadata.mtime_nsec()),
    }))
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
/// How often is looked where the path leads to.
const LOOK_EVERY: Duration = Duration::from_secs(5);
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
