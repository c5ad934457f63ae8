// Cleans a container after a use, and records the state of a new one to compare with. Part of the shim (shim.c).
//
// Nothing here trusts what is in the container: folders are held as descriptors opened before anybody could replace them, links
// are not followed, and everything has a deadline.

#define _GNU_SOURCE
#include "shim.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define PLACES_MAX 32       // folders that are emptied
#define DEPTH_MAX 48        // of nested folders; deeper ones are moved up first

// A folder that is emptied, with its attributes when the container was new.
struct place {
    int fd;
    mode_t mode;
    uid_t uid;
    gid_t gid;
    ssize_t attributes;  // bytes of listxattr(2)
};

// Properties of the shim's process that its children inherit and that must not have changed.
struct self {
    struct rlimit limits[RLIM_NLIMITS];
    cpu_set_t cpus;
    int nice;
    int scheduler;
    char oom[16];
    uint64_t files;    // fingerprints: see look_at_self
    uint64_t devices;
};

static struct place places[PLACES_MAX];
static size_t place_count;
static struct self self_then;

// Empties a folder. Mount points in it stay: nobody in the container can create one (no CAP_SYS_ADMIN), so they are the
// container's own. 0, or -1 with errno. Folders that are nested too deeply are moved up to `top`, for the next pass.
static int empty(int folder, int top, int depth) {
    static uint32_t names;
    // A descriptor with its own offset, at the beginning.
    int here = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (here < 0) return -1;
    DIR *entries = fdopendir(here);
    if (!entries) {
        close(here);
        return -1;
    }
    int result = 0;
    for (struct dirent *entry; result == 0 && (entry = readdir(entries));) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) continue;
        if (now_ms() >= deadline_ms) {
            errno = ETIMEDOUT;
            result = -1;
            break;
        }
        if (unlinkat(here, name, 0) == 0 || errno == ENOENT || errno == EBUSY) continue;
        // Linux returns EISDIR for folders; POSIX and some file systems return EPERM (unlink(2)).
        if (errno != EISDIR && errno != EPERM) result = -1;
        else if (unlinkat(here, name, AT_REMOVEDIR) == 0 || errno == EBUSY) continue;
        else if (errno != ENOTEMPTY && errno != EEXIST) result = -1;
        else if (depth >= DEPTH_MAX) {
            char unique[32] = ".pilot-";
            size_t len = strlen(unique);
            for (uint32_t rest = names++; len < sizeof unique - 1; rest /= 16) {
                unique[len++] = "0123456789abcdef"[rest % 16];
                if (rest < 16) break;
            }
            result = renameat(here, name, top, unique);
        } else {
            int below = openat(here, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            result = below < 0 ? -1 : empty(below, top, depth + 1);
            int error = errno;
            if (below >= 0) close(below);
            errno = error;
            if (result == 0 && unlinkat(here, name, AT_REMOVEDIR) < 0 && errno != EBUSY && errno != ENOTEMPTY) result = -1;
        }
    }
    int error = errno;
    closedir(entries);
    errno = error;
    return result;
}

// Whether only mount points are left.
static int is_empty(int folder) {
    int here = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = here < 0 ? NULL : fdopendir(here);
    if (!entries) {
        if (here >= 0) close(here);
        return 0;
    }
    struct stat own, other;
    int found = fstat(here, &own) < 0;
    for (struct dirent *entry; !found && (entry = readdir(entries));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        found = fstatat(here, entry->d_name, &other, AT_SYMLINK_NOFOLLOW) < 0 || other.st_dev == own.st_dev;
    }
    closedir(entries);
    return !found;
}

static const char *refresh(const struct place *place) {
    struct stat now;
    // Removing entries while reading a folder may skip some: repeat until it is empty. The deadline is checked inside.
    while (!is_empty(place->fd))
        if (empty(place->fd, place->fd, 0) < 0) return "a folder cannot be emptied";
    if (fstat(place->fd, &now) < 0) return "fstat";
    if ((now.st_uid != place->uid || now.st_gid != place->gid) && fchown(place->fd, place->uid, place->gid) < 0) return "fchown";
    if (now.st_mode != place->mode && fchmod(place->fd, place->mode & 07777) < 0) return "fchmod";
    errno = EEXIST;
    if (flistxattr(place->fd, NULL, 0) != place->attributes) return "a folder has attributes it had not";
    return NULL;
}

// Only its owner or creator may remove an object (sysvipc(7)), because the shim has no CAP_SYS_ADMIN: so it acts as that user.
static int remove_as(uint32_t uid, uint32_t creator, int id, int (*remove)(int)) {
    int result = remove(id);
    uint32_t whose[2] = {uid, creator};
    for (int i = 0; result < 0 && errno == EPERM && i < 2; i++) {
        if (seteuid(whose[i]) < 0) return -1;
        result = remove(id);
        int error = errno;
        if (seteuid(0) < 0) _exit(112);
        errno = error;
    }
    return result < 0 && errno != EIDRM && errno != EINVAL ? -1 : 0;
}

static int remove_segment(int id) { return shmctl(id, IPC_RMID, NULL); }
static int remove_semaphores(int id) { return semctl(id, 0, IPC_RMID); }
static int remove_queue(int id) { return msgctl(id, IPC_RMID, NULL); }

// Tables of proc_sysvipc(5): a header, then one line each: key, id, …; `uid_at` is the owner's column, the creator's is two
// further. Repeats until the table is empty, since it may be longer than one read.
static const char *remove_ipc(const char *table, size_t uid_at, int (*remove)(int), const char *what) {
    for (size_t found = 1; found;) {
        found = 0;
        char *rest = text_of(table), *line = strsep(&rest, "\n");
        while ((line = strsep(&rest, "\n"))) {
            uint32_t id = 0, uid = 0, creator = 0;
            size_t column = 0;
            for (char *field; (field = strsep(&line, " "));) {
                if (!field[0]) continue;
                if (column == 1) number_of(field, &id);
                if (column == uid_at) number_of(field, &uid);
                if (column == uid_at + 2) number_of(field, &creator);
                column++;
            }
            // The last line may be cut off: the next round reads it completely.
            if (column <= uid_at + 2) continue;
            found++;
            if (remove_as(uid, creator, (int)id, remove) < 0) return what;
        }
        errno = ETIMEDOUT;
        if (found && now_ms() >= deadline_ms) return what;
    }
    return NULL;
}

static uint64_t mix(uint64_t hash, const void *data, size_t len) {
    const uint8_t *at = data;
    while (len--) hash = (hash ^ *at++) * 0x100000001b3u;  // FNV-1a
    return hash;
}

static uint64_t mix_stat(uint64_t hash, const struct stat *stat) {
    uint64_t parts[] = {stat->st_ino, stat->st_mode, stat->st_uid, stat->st_gid, stat->st_rdev};
    return mix(hash, parts, sizeof parts);
}

// Fingerprint of /dev (which belongs to the container and is writable for root, which a function may be): names, kinds, modes,
// owners, without mount points. It does not depend on the order.
static uint64_t of_devices(int folder, dev_t device, int depth) {
    int here = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = here < 0 ? NULL : fdopendir(here);
    if (!entries) {
        if (here >= 0) close(here);
        return 0;
    }
    uint64_t sum = 0;
    for (struct dirent *entry; (entry = readdir(entries));) {
        struct stat stat;
        const char *name = entry->d_name;
        if (strcmp(name, "..") == 0 || fstatat(here, name, &stat, AT_SYMLINK_NOFOLLOW) < 0 || stat.st_dev != device) continue;
        sum += mix_stat(mix(0xcbf29ce484222325u, name, strlen(name)), &stat);
        if (S_ISDIR(stat.st_mode) && strcmp(name, ".") != 0 && depth < 4) {
            int below = openat(here, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            if (below >= 0) {
                sum += of_devices(below, device, depth + 1) * 31;
                close(below);
            }
        }
    }
    closedir(entries);
    return sum;
}

// Files that the engine mounts into the container from outside: writes to them are in no layer.
static const char *const MOUNTED[] = {"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"};

static const char *look_at_self(struct self *self) {
    memset(self, 0, sizeof *self);
    for (int i = 0; i < (int)RLIM_NLIMITS; i++)
        if (getrlimit(i, &self->limits[i]) < 0) return "getrlimit";
    if (sched_getaffinity(0, sizeof self->cpus, &self->cpus) < 0) return "sched_getaffinity";
    self->nice = getpriority(PRIO_PROCESS, 0);
    // The function of that name in musl always fails.
    self->scheduler = (int)syscall(SYS_sched_getscheduler, 0);
    strncpy(self->oom, text_of("/proc/self/oom_score_adj"), sizeof self->oom - 1);
    uint64_t files = 0xcbf29ce484222325u;
    for (size_t i = 0; i < sizeof MOUNTED / sizeof *MOUNTED; i++) {
        struct stat stat;
        if (lstat(MOUNTED[i], &stat) == 0) files = mix_stat(files, &stat);
        const char *text = text_of(MOUNTED[i]);
        files = mix(files, text, strlen(text));
    }
    uint64_t devices = 0;
    int dev = open("/dev", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct stat stat;
    if (dev >= 0 && fstat(dev, &stat) == 0) devices = of_devices(dev, stat.st_dev, 0);
    if (dev >= 0) close(dev);
    self->files = files;
    self->devices = devices;
    return NULL;
}

static const char *compare_self(void) {
    static struct self now;
    const char *problem = look_at_self(&now);
    if (problem) return problem;
    errno = EEXIST;
    if (memcmp(now.limits, self_then.limits, sizeof now.limits) != 0) return "the limits of process 1 were changed";
    if (!CPU_EQUAL(&now.cpus, &self_then.cpus)) return "the affinity of process 1 was changed";
    if (now.nice != self_then.nice || now.scheduler != self_then.scheduler) return "the priority of process 1 was changed";
    if (strcmp(now.oom, self_then.oom) != 0) return "the OOM score of process 1 was changed";
    if (now.files != self_then.files) return "/etc/hosts, /etc/hostname or /etc/resolv.conf was changed";
    if (now.devices != self_then.devices) return "/dev was changed";
    return NULL;
}

// Records the state of a new container. The request carries the folders that will be emptied; a folder that is not empty now
// has content from the image, and is an error. Without folders, only the rest is recorded again.
void op_seal(uint64_t id) {
    char *at = (char *)message + sizeof(struct head), *end = (char *)message + message_len;
    for (size_t i = 0; at < end && i < place_count; i++) close(places[i].fd);
    if (at < end) place_count = 0;
    while (at < end) {
        char *nul = memchr(at, 0, (size_t)(end - at));
        if (!nul || place_count == PLACES_MAX) return failed(id, EINVAL, "seal");
        struct place *place = &places[place_count];
        struct stat stat;
        place->fd = open(at, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        // If the image does not have it, nobody can have written to it: creating it would show in the container's layer.
        if (place->fd < 0 && errno == ENOENT) {
            at = nul + 1;
            continue;
        }
        if (place->fd < 0 || fstat(place->fd, &stat) < 0) return failed(id, errno, at);
        if (!is_empty(place->fd)) {
            close(place->fd);
            return failed(id, ENOTEMPTY, at);
        }
        place->mode = stat.st_mode;
        place->uid = stat.st_uid;
        place->gid = stat.st_gid;
        place->attributes = flistxattr(place->fd, NULL, 0);
        place_count++;
        at = nul + 1;
    }
    const char *problem = look_at_self(&self_then);
    if (problem) failed(id, errno, problem);
    else done(id);
}

void op_clean(uint64_t id) {
    const char *problem = kill_all();
    for (size_t i = 0; !problem && i < place_count; i++) problem = refresh(&places[i]);
    if (!problem) problem = remove_ipc("/proc/sysvipc/shm", 7, remove_segment, "a shared memory segment cannot be removed");
    if (!problem) problem = remove_ipc("/proc/sysvipc/sem", 4, remove_semaphores, "a semaphore set cannot be removed");
    if (!problem) problem = remove_ipc("/proc/sysvipc/msg", 7, remove_queue, "a message queue cannot be removed");
    if (!problem) problem = compare_self();
    if (problem) failed(id, errno, problem);
    else done(id);
}
