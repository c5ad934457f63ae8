//! Groups of functions whose processes are ending or have ended. A group is removed when nothing is charged to it any more: the
//! kernel goes on charging the groups around a removed one for memory that others still have (`mem_cgroup_css_offline` in
//! mm/memcontrol.c), and nobody could tell any more whose memory that is. So a function whose ended workers leave memory to
//! others, as shared memory or as files that they have sent, has it counted until it is free.
//!
//! Nothing here is on the path of an invocation: groups are looked at in a thread of their own.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pilot_model::{FunctionName, Version, VersionId};

use super::{Cgroup, Hierarchy, Layout, counter, remove, v1, v2};

/// The version of a function that a group belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) version: VersionId,
    pub(crate) function: FunctionName,
    /// Memory of buffers that it may have handed over to other functions, bytes. They are charged to its workers as long as
    /// somebody has them, and the daemon limits them.
    pub(crate) handed_over_bytes_max: u64,
}

impl Owner {
    /// `share_bytes` is what all buffers of a function may have together.
    pub(crate) fn of(version: &Version, share_bytes: u64) -> Self {
        let hands_over = !version.config.invokes.is_empty();
        Self {
            version: version.id.clone(),
            function: version.config.name.clone(),
            handed_over_bytes_max: if hands_over { share_bytes } else { 0 },
        }
    }
}

/// A function whose ended workers have left more memory than it may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeftBehind {
    pub(crate) owner: Owner,
    pub(crate) bytes: u64,
    pub(crate) bytes_max: u64,
    /// That they are charged to.
    pub(crate) groups: usize,
}

/// The groups that are not removed yet.
#[derive(Debug, Default)]
pub(super) struct EndedGroups {
    /// Never held while a file is read.
    groups: Mutex<Vec<EndedGroup>>,
    /// Held while they are looked at.
    looks: Mutex<Looks>,
}

#[derive(Debug, Default)]
struct Looks {
    /// When the next one may begin. `None`: at once.
    due: Option<Instant>,
    /// When a version was last reported.
    told: HashMap<VersionId, Instant>,
}

#[derive(Debug)]
struct EndedGroup {
    owner: Owner,
    /// Its folders, one per hierarchy.
    folders: Vec<PathBuf>,
    /// The one with the files about memory.
    memory: PathBuf,
    /// What its function may leave.
    bytes_max: u64,
    /// Since when it is known to have no processes.
    vacant_since: Option<Instant>,
    /// What stays charged; 0 while it is unknown.
    left_bytes: u64,
    /// How often the kernel is asked yet to free what it can.
    reclaims_left: u32,
}

/// What is charged to a group, without files in the page cache, which the kernel drops when it needs room.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Charge {
    /// Memory of programs, and shared memory. Without swap space, only its users can free it.
    used_bytes: u64,
    /// The rest, such as buffers of pipes and sockets. The kernel can free some of it.
    kernel_bytes: u64,
}

impl Cgroup {
    /// Says whose group it is.
    pub(crate) fn belongs_to(&self, owner: Owner) {
        *self.owner.lock() = Some(owner);
    }

    pub(crate) fn is_of(&self, version: &VersionId) -> bool {
        let owner = self.owner.lock();
        owner
            .as_ref()
            .is_some_and(|owner| owner.version == *version)
    }

    /// Whether memory is charged to it that its processes, which have ended, have left to others.
    pub(crate) fn is_charged(&self) -> bool {
        let memory = self.files.oom.parent().unwrap_or(Path::new(""));
        let layout = &self.hierarchy.inner.layout;
        // Nearly every group has less in all, which one short file says. The other one takes the kernel long.
        layout.all_bytes(memory) > USED_BYTES_RECYCLED_MAX
            && layout.charge(memory).used_bytes > USED_BYTES_RECYCLED_MAX
    }

    pub(crate) fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }

    /// Lets it be removed when its memory is free. `false`: it belongs to nobody.
    pub(super) fn end(&mut self) -> bool {
        let Some(owner) = self.owner.get_mut().take() else {
            return false;
        };
        let memory_bytes = self.limits.get_mut().memory_bytes;
        let ended = EndedGroup {
            bytes_max: memory_bytes.saturating_add(owner.handed_over_bytes_max),
            owner,
            memory: self
                .files
                .oom
                .parent()
                .map(PathBuf::from)
                .unwrap_or_default(),
            folders: std::mem::take(&mut self.files.folders),
            vacant_since: None,
            left_bytes: 0,
            reclaims_left: RECLAIMS,
        };
        self.hierarchy.inner.ended.groups.lock().push(ended);
        true
    }
}

impl Hierarchy {
    /// Whether there are groups to be looked at.
    pub(crate) fn has_ended_groups(&self) -> bool {
        !self.inner.ended.groups.lock().is_empty()
    }

    /// Removes the groups of functions that have no processes and no memory any more. Returns functions that have left more than
    /// they may have, each once in [`TOLD_EVERY`]. Does nothing while another thread does it. Blocks.
    pub(crate) fn look_at_ended(&self) -> Vec<LeftBehind> {
        let ended = &self.inner.ended;
        let Some(mut looks) = ended.looks.try_lock() else {
            return Vec::new();
        };
        let begun = Instant::now();
        if looks.due.is_some_and(|due| due > begun) {
            return Vec::new();
        }
        let mut groups = std::mem::take(&mut *ended.groups.lock());
        let before = groups.len();
        groups.retain_mut(|group| !group.is_removed(&self.inner.layout));
        let kept = groups.len();
        let mut left = sums(&groups);
        ended.groups.lock().append(&mut groups);
        let now = Instant::now();
        // Those that are gone take no time any more.
        let of_kept = (now - begun).mul_f64(kept as f64 / before.max(1) as f64);
        looks.due = Some(now + of_kept * PAUSE_PER_TIME);
        looks.told.retain(|_, told| now - *told < TOLD_EVERY);
        left.retain(|left| left.is_too_much() && !looks.told.contains_key(&left.owner.version));
        for one in &left {
            looks.told.insert(one.owner.version.clone(), now);
        }
        left
    }

    /// Removes those without processes, whatever is charged to them: for the end of the daemon. Returns whether none is left.
    pub(super) fn remove_ended(&self) -> bool {
        self.inner.ended.remove_all()
    }
}

impl EndedGroups {
    pub(super) fn remove_all(&self) -> bool {
        let mut groups = self.groups.lock();
        groups.retain_mut(|group| !group.remove());
        groups.is_empty()
    }
}

impl EndedGroup {
    /// Removes it if it has no processes, and nothing is charged to it.
    fn is_removed(&mut self, layout: &Layout) -> bool {
        let mut charge = layout.charge(&self.memory);
        let is_kept = |charge: &Charge| charge.used_bytes > USED_BYTES_MAX;
        if !is_kept(&charge) && charge.kernel_bytes <= KERNEL_BYTES_MAX {
            // The kernel refuses it while there are processes.
            return self.remove();
        }
        if has_processes(&self.memory) {
            self.vacant_since = None;
            return false;
        }
        let since = *self.vacant_since.get_or_insert_with(Instant::now);
        if since.elapsed() < FREED_AFTER {
            return false;
        }
        if charge.kernel_bytes > KERNEL_BYTES_MAX && self.reclaims_left > 0 {
            self.reclaims_left -= 1;
            // An error means that there is not as much to free.
            let _ = match layout {
                Layout::V1(_) => v1::reclaim(&self.memory),
                Layout::V2(_) => v2::reclaim(&self.memory),
            };
            charge = layout.charge(&self.memory);
            if self.reclaims_left > 0 {
                charge.kernel_bytes = 0;
            }
        }
        self.left_bytes = charge.used_bytes + charge.kernel_bytes;
        false
    }

    fn remove(&mut self) -> bool {
        self.folders.retain(|folder| !remove(folder));
        self.folders.is_empty()
    }
}

impl LeftBehind {
    fn is_too_much(&self) -> bool {
        let handed_over = self.owner.handed_over_bytes_max / USED_BYTES_MAX;
        let groups_max = usize::try_from(handed_over).unwrap_or(usize::MAX);
        let groups_max = groups_max
            .saturating_add(GROUPS_MAX)
            .min(GROUPS_WITH_BUFFERS_MAX);
        self.bytes > self.bytes_max || self.groups > groups_max
    }
}

/// What each version has left.
fn sums(groups: &[EndedGroup]) -> Vec<LeftBehind> {
    let mut sums: HashMap<&VersionId, LeftBehind> = HashMap::new();
    for group in groups.iter().filter(|group| group.left_bytes > 0) {
        let sum = sums
            .entry(&group.owner.version)
            .or_insert_with(|| LeftBehind {
                owner: group.owner.clone(),
                bytes: 0,
                bytes_max: 0,
                groups: 0,
            });
        sum.bytes = sum.bytes.saturating_add(group.left_bytes);
        sum.bytes_max = sum.bytes_max.max(group.bytes_max);
        sum.groups += 1;
    }
    sums.into_values().collect()
}

impl Layout {
    /// All that is charged to a group. 0 for one that is gone.
    fn all_bytes(&self, group: &Path) -> u64 {
        let file = match self {
            Self::V1(_) => "memory.usage_in_bytes",
            Self::V2(_) => "memory.current",
        };
        let mut text = [0; 24];
        let read = File::open(group.join(file)).and_then(|mut file| file.read(&mut text));
        let number = read.ok().and_then(|len| str::from_utf8(&text[..len]).ok());
        number
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0)
    }

    fn charge(&self, group: &Path) -> Charge {
        let program = match self {
            Self::V1(_) => "rss",
            Self::V2(_) => "anon",
        };
        let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let count = |name: &str| counter(&stat, name);
        let used_bytes = count(program) + count("shmem");
        let all = self.all_bytes(group);
        // Version 1 does not say how much of the kernel's own memory it can free.
        let free = count("inactive_file") + count("active_file") + count("slab_reclaimable");
        Charge {
            used_bytes,
            kernel_bytes: all.saturating_sub(used_bytes).saturating_sub(free),
        }
    }
}

/// Whether a process is in a group. A group that is gone has none.
fn has_processes(group: &Path) -> bool {
    !super::threads_in(group).is_empty()
}

/// What may stay charged to a group that is removed: the kernel counts in batches.
const USED_BYTES_MAX: u64 = 128 << 10;

/// The same of the kernel's own memory.
const KERNEL_BYTES_MAX: u64 = 2 << 20;

/// What may stay charged to a group that the next worker gets.
const USED_BYTES_RECYCLED_MAX: u64 = 1 << 20;

/// After the last process of a group, the sandbox's init ends, and then its `/tmp` is freed. This takes so long at most.
const FREED_AFTER: Duration = Duration::from_secs(1);

/// How often the kernel is asked to free memory of a group.
const RECLAIMS: u32 = 3;

/// Groups of a version that memory is charged to, and that have no processes.
const GROUPS_MAX: usize = 256;

/// The same of a version that hands many small buffers over.
const GROUPS_WITH_BUFFERS_MAX: usize = 16_384;

/// For how long a version is not reported again: its processes take time to end, and their memory to be freed.
const TOLD_EVERY: Duration = Duration::from_secs(2);

/// The pause after a look: looking takes a twentieth of a CPU at most.
const PAUSE_PER_TIME: u32 = 19;

#[cfg(test)]
mod tests;
