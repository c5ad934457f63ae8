// Process 1 of every container: starts what the daemon asks for, hands out sockets of the container's network, reaps, and makes
// the container as new after a use.
//
// A static program without dependencies, because it runs in any image. Single-threaded; every table and loop has a bound, and a
// request that does not fit is refused, never cut.
//
// What it is not: it decides nothing. What is run as whom, which folders are emptied and how long that may take comes with the
// request; crates/side/container/src/shim/ is the other end, and the only one.
//
// The daemon listens and the shim calls it, once: there is no socket in the container that the function could reach. When that
// connection ends (the daemon let go, or died), so does the shim, and with it everything in the container (pid_namespaces(7)).
//
// What runs in the container may be root there, but holds none of the capabilities that the shim holds: it cannot trace the
// shim (ptrace(2)), nor signal it (process 1 gets no signal from inside that it has no handler for), and what it may change of
// it all the same (limits, priority, affinity) is compared before each further use.

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#define PROTOCOL 1

#define MESSAGE_MAX (64 * 1024)
#define FDS_MAX 3
#define PROCESSES_MAX 1024  // that were asked for and run at the same time
#define WORDS_MAX 4096      // arguments and variables of one program, together
#define GROUPS_MAX 32
#define PLACES_MAX 32       // folders that are emptied
#define FILE_MAX (256 * 1024)
#define BACKLOG 1024
#define DEPTH_MAX 48        // of folders within folders; what lies deeper is brought up first
#define SEND_S_MAX 10       // a daemon that does not read for so long is gone
// Below the daemon and whatever else runs on the machine, when the kernel must choose (proc_pid_oom_score_adj(5)).
#define OOM_SCORE "300"

enum op {
    OP_EXEC = 1,
    OP_SIGNAL,
    OP_LISTEN,
    OP_CONNECT,
    OP_KILL,
    OP_CLEAN,
    OP_SEAL,
    OP_USER,
    OP_HELLO = 100,
    OP_DONE,
    OP_FAILED,
    OP_EXITED,
};

// Both ways; what follows it depends on `op`.
struct head {
    uint32_t op;
    uint32_t value;
    uint64_t id;  // of the request; an EXEC's is the process's, too
};

// Of EXEC. Groups (u32 each), the working folder, arguments and variables (each ended by NUL) follow.
struct exec {
    uint32_t uid;
    uint32_t gid;
    uint32_t groups;
    uint32_t arguments;
    uint32_t variables;
};

// Of SIGNAL.
struct signal_target {
    uint64_t process;
    uint32_t whole_group;
    uint32_t reserved;
};

// The answer to USER; groups and the home folder follow.
struct user {
    uint32_t uid;
    uint32_t gid;
    uint32_t groups;
};

struct process {
    pid_t pid;  // 0: free
    uint64_t id;
};

// A folder that is emptied, as it was when the container was new.
struct place {
    int fd;
    mode_t mode;
    uid_t uid;
    gid_t gid;
    ssize_t attributes;  // bytes of listxattr(2)
};

// What the shim's own process must still be like: what its children inherit.
struct self {
    struct rlimit limits[RLIM_NLIMITS];
    cpu_set_t cpus;
    int nice;
    int scheduler;
    char oom[16];
    uint64_t files;    // fingerprints: see look_at_self
    uint64_t devices;
};

static int daemon_fd;
static int signals_fd;
static struct process processes[PROCESSES_MAX];
static struct place places[PLACES_MAX];
static size_t place_count;
static struct self self_then;

static uint8_t message[MESSAGE_MAX];
static size_t message_len;
static int fds[FDS_MAX];
static size_t fd_count;

static uint64_t deadline_ms;

// ---- small things ---------------------------------------------------------------------------------------------------

static uint64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void say(const char *text) {
    ssize_t ignored = write(2, text, strlen(text));
    (void)ignored;
}

static _Noreturn void give_up(const char *text) {
    say("pilot shim: ");
    say(text);
    say("\n");
    _exit(111);
}

static void close_fds(void) {
    for (size_t i = 0; i < fd_count; i++) close(fds[i]);
    fd_count = 0;
}

// ---- to the daemon --------------------------------------------------------------------------------------------------

static void tell(uint32_t op, uint32_t value, uint64_t id, const void *payload, size_t len, int fd) {
    struct head head = {op, value, id};
    struct iovec parts[2] = {{&head, sizeof head}, {(void *)(uintptr_t)payload, len}};
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr out = {.msg_iov = parts, .msg_iovlen = payload ? 2 : 1};
    if (fd >= 0) {
        memset(&control, 0, sizeof control);
        out.msg_control = control.space;
        out.msg_controllen = sizeof control.space;
        struct cmsghdr *rights = CMSG_FIRSTHDR(&out);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(rights), &fd, sizeof(int));
    }
    while (sendmsg(daemon_fd, &out, MSG_NOSIGNAL) < 0) {
        if (errno != EINTR) _exit(0);  // Nobody is there any more.
    }
}

static void done(uint64_t id) { tell(OP_DONE, 0, id, NULL, 0, -1); }

static void failed(uint64_t id, int error, const char *what) {
    tell(OP_FAILED, (uint32_t)error, id, what, strlen(what), -1);
}

// ---- processes ------------------------------------------------------------------------------------------------------

static struct process *process_of(uint64_t id) {
    for (size_t i = 0; i < PROCESSES_MAX; i++)
        if (processes[i].pid && processes[i].id == id) return &processes[i];
    return NULL;
}

// Reaps whoever has ended, and reports those that were asked for. Whether there are children left.
static int reap(void) {
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid == 0) return 1;
        if (pid < 0) {
            if (errno == EINTR) continue;
            return 0;
        }
        for (size_t i = 0; i < PROCESSES_MAX; i++) {
            if (processes[i].pid != pid) continue;
            processes[i].pid = 0;
            tell(OP_EXITED, (uint32_t)status, processes[i].id, NULL, 0, -1);
            break;
        }
    }
}

// Gives up every capability for good, so that not even root's next execve(2) brings one back.
static int drop_capabilities(void) {
    for (unsigned long capability = 0; capability < 64; capability++)
        if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0 && errno != EINVAL) return -1;
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 && errno != EINVAL) return -1;
    return 0;
}

static int no_capabilities(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2];
    memset(none, 0, sizeof none);
    return (int)syscall(SYS_capset, &header, none);
}

struct program {
    const struct exec *exec;
    gid_t groups[GROUPS_MAX];
    char *dir;
    char *words[WORDS_MAX + 2];  // arguments, NULL, variables, NULL
};

static struct program program;

// Runs in the child. Which step failed, if it comes back.
static const char *become(const struct program *p) {
    sigset_t none;
    sigemptyset(&none);
    for (int number = 1; number < 65; number++) signal(number, SIG_DFL);
    setsid();
    for (int i = 0; i < FDS_MAX; i++)
        if (dup2(fds[i], i) < 0) return "dup2";
    syscall(SYS_close_range, 3u, ~0u, 4u /* CLOSE_RANGE_CLOEXEC */);
    umask(022);
    int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (score >= 0) {
        ssize_t ignored = write(score, OOM_SCORE, strlen(OOM_SCORE));
        (void)ignored;
        close(score);
    }
    if (drop_capabilities() < 0) return "PR_CAPBSET_DROP";
    if (setgroups(p->exec->groups, p->groups) < 0) return "setgroups";
    if (setresgid(p->exec->gid, p->exec->gid, p->exec->gid) < 0) return "setresgid";
    if (setresuid(p->exec->uid, p->exec->uid, p->exec->uid) < 0) return "setresuid";
    if (no_capabilities() < 0) return "capset";
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) return "PR_SET_NO_NEW_PRIVS";
    if (chdir(p->dir) < 0) return "the working folder";
    sigprocmask(SIG_SETMASK, &none, NULL);
    // execvp looks at the PATH of `environ`: the function's.
    environ = (char **)(uintptr_t)(p->words + p->exec->arguments + 1);
    execvp(p->words[0], p->words);
    return "execve";
}

// Reads an EXEC's payload into `program`. False: it is not one.
static int parse_exec(void) {
    const uint8_t *end = message + message_len;
    uint8_t *at = message + sizeof(struct head);
    if ((size_t)(end - at) < sizeof(struct exec)) return 0;
    const struct exec *exec = (const struct exec *)(const void *)at;
    program.exec = exec;
    at += sizeof *exec;
    if (exec->groups > GROUPS_MAX || (size_t)(end - at) < exec->groups * sizeof(uint32_t)) return 0;
    for (uint32_t i = 0; i < exec->groups; i++, at += sizeof(uint32_t)) {
        uint32_t group;
        memcpy(&group, at, sizeof group);
        program.groups[i] = group;
    }
    if (exec->arguments == 0 || exec->arguments > WORDS_MAX || exec->variables > WORDS_MAX - exec->arguments) return 0;
    size_t filled = 0;
    for (uint32_t i = 0; i <= exec->arguments + exec->variables; i++) {
        uint8_t *nul = memchr(at, 0, (size_t)(end - at));
        if (!nul) return 0;
        if (i == 0) program.dir = (char *)at;
        else program.words[filled++] = (char *)at;
        if (i == exec->arguments) program.words[filled++] = NULL;
        at = nul + 1;
    }
    program.words[filled] = NULL;
    return at == end;
}

static void op_exec(uint64_t id) {
    struct process *slot = NULL;
    for (size_t i = 0; i < PROCESSES_MAX && !slot; i++)
        if (!processes[i].pid) slot = &processes[i];
    int report[2];
    if (fd_count != 3 || !parse_exec()) return failed(id, EINVAL, "exec");
    if (!slot) return failed(id, EAGAIN, "there are too many processes");
    if (pipe2(report, O_CLOEXEC) < 0) return failed(id, errno, "pipe2");
    pid_t pid = fork();
    if (pid < 0) {
        int error = errno;
        close(report[0]);
        close(report[1]);
        return failed(id, error, "fork");
    }
    if (pid == 0) {
        struct {
            int error;
            char step[60];
        } why;
        memset(&why, 0, sizeof why);
        const char *step = become(&program);
        why.error = errno;
        strncpy(why.step, step, sizeof why.step - 1);
        ssize_t ignored = write(report[1], &why, sizeof why);
        (void)ignored;
        _exit(127);
    }
    close(report[1]);
    struct {
        int error;
        char step[60];
    } why;
    ssize_t len;
    // Ends with the child's execve, which closes the other end, or with its _exit.
    while ((len = read(report[0], &why, sizeof why)) < 0 && errno == EINTR) {}
    close(report[0]);
    if (len == sizeof why) {
        waitpid(pid, NULL, 0);
        why.step[sizeof why.step - 1] = 0;
        return failed(id, why.error, why.step);
    }
    slot->pid = pid;
    slot->id = id;
    tell(OP_DONE, (uint32_t)pid, id, NULL, 0, -1);
}

static void op_signal(uint64_t id, uint32_t number) {
    struct signal_target target;
    if (message_len != sizeof(struct head) + sizeof target) return failed(id, EINVAL, "signal");
    memcpy(&target, message + sizeof(struct head), sizeof target);
    struct process *process = process_of(target.process);
    // Its id cannot be another's: it is ours to reap.
    if (process && kill(target.whole_group ? -process->pid : process->pid, (int)number) < 0 && errno != ESRCH)
        return failed(id, errno, "kill");
    done(id);
}

// Whether /proc shows a process beside this one.
static int others(void) {
    DIR *proc = opendir("/proc");
    if (!proc) return 1;
    int found = 0;
    for (struct dirent *entry; !found && (entry = readdir(proc));)
        found = entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && strcmp(entry->d_name, "1") != 0;
    closedir(proc);
    return found;
}

// Ends every process but this one. NULL, or what is in the way.
static const char *kill_all(void) {
    for (;;) {
        // All at once, whatever they fork meanwhile (kill(2)); process 1 is left out.
        if (kill(-1, SIGKILL) < 0 && errno != ESRCH) return "kill";
        if (!reap() && !others()) return NULL;
        if (now_ms() >= deadline_ms) {
            errno = ETIMEDOUT;
            return "a process does not end";
        }
        struct pollfd ended = {signals_fd, POLLIN, 0};
        // Not only our own children's ends matter: what was brought in from outside is reaped there, and nobody tells us.
        poll(&ended, 1, 2);
        struct signalfd_siginfo info;
        while (read(signals_fd, &info, sizeof info) > 0) {}
    }
}

// ---- sockets --------------------------------------------------------------------------------------------------------

static void op_socket(uint64_t id, uint32_t port, int listens) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const char *step = NULL;
    int yes = 1;
    if (fd < 0) return failed(id, errno, "socket");
    if (port > UINT16_MAX) {
        errno = EINVAL;
        step = "port";
    } else if (listens) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        if (bind(fd, (struct sockaddr *)&at, sizeof at) < 0) step = "bind";
        else if (listen(fd, BACKLOG) < 0) step = "listen";
    } else if (connect(fd, (struct sockaddr *)&at, sizeof at) < 0 && errno != EINPROGRESS) {
        // In progress: the daemon waits for the end of it, so that nobody here does.
        step = "connect";
    }
    int error = errno;
    if (step) failed(id, error, step);
    else tell(OP_DONE, 0, id, NULL, 0, fd);
    close(fd);
}

// ---- the image's users ----------------------------------------------------------------------------------------------

static char file_text[FILE_MAX];

// A regular file's text, or nothing. An image says what lies there: it may be a pipe.
static char *text_of(const char *path) {
    file_text[0] = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return file_text;
    struct stat stat;
    size_t len = 0;
    if (fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode)) {
        ssize_t got;
        while (len < FILE_MAX - 1 && (got = read(fd, file_text + len, FILE_MAX - 1 - len)) > 0) len += (size_t)got;
    }
    close(fd);
    file_text[len] = 0;
    return file_text;
}

// Cuts the next line into fields at ':'. False: there is none.
static int next_line(char **rest, char *fields[7]) {
    char *line;
    while ((line = strsep(rest, "\n"))) {
        size_t count = 0;
        for (char *field; count < 7 && (field = strsep(&line, ":")); count++) fields[count] = field;
        if (count < 3 || !fields[0][0]) continue;
        for (; count < 7; count++) fields[count] = (char *)(uintptr_t)"";
        return 1;
    }
    return 0;
}

static int number_of(const char *text, uint32_t *number) {
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (errno || end == text || *end || value >= UINT32_MAX || text[0] == '-' || text[0] == '+') return 0;
    *number = (uint32_t)value;
    return 1;
}

static int lists(char *members, const char *name) {
    for (char *member; (member = strsep(&members, ","));)
        if (strcmp(member, name) == 0) return 1;
    return 0;
}

// `name`, `uid`, `name:group`, `uid:gid`, or nothing for root: as an image's USER is read by engines.
static void op_user(uint64_t id) {
    static struct {
        struct user user;
        uint32_t groups[GROUPS_MAX];
        char home[256];
    } answer;
    char spec[256], name[256] = "", home[256] = "/", *fields[7];
    size_t len = message_len - sizeof(struct head);
    if (len >= sizeof spec) return failed(id, EINVAL, "user");
    memcpy(spec, message + sizeof(struct head), len);
    spec[len] = 0;
    char *group = spec, *who = strsep(&group, ":");
    if (!who[0]) who = (char *)(uintptr_t)"0";
    memset(&answer, 0, sizeof answer);
    uint32_t uid = 0, gid = 0, asked;
    int is_number = number_of(who, &asked), known = 0;
    for (char *rest = text_of("/etc/passwd"); !known && next_line(&rest, fields);) {
        uint32_t here;
        if (!number_of(fields[2], &here)) continue;
        if (strcmp(fields[0], who) != 0 && !(is_number && here == asked)) continue;
        known = 1;
        uid = here;
        if (!number_of(fields[3], &gid)) gid = 0;
        strncpy(name, fields[0], sizeof name - 1);
        if (fields[5][0]) strncpy(home, fields[5], sizeof home - 1);
    }
    if (!known && !is_number) return failed(id, ENOENT, "/etc/passwd of the image does not have this user");
    if (!known) uid = asked;
    answer.user.uid = uid;
    if (group && group[0] && number_of(group, &gid)) group = NULL;
    int group_known = !(group && group[0]);
    int takes_all = group_known && name[0];
    for (char *rest = text_of("/etc/group"); next_line(&rest, fields);) {
        uint32_t here;
        if (!number_of(fields[2], &here)) continue;
        if (!group_known && strcmp(fields[0], group) == 0) {
            gid = here;
            group_known = 1;
        }
        if (takes_all && here != gid && answer.user.groups < GROUPS_MAX && lists(fields[3], name))
            answer.groups[answer.user.groups++] = here;
    }
    if (!group_known) return failed(id, ENOENT, "/etc/group of the image does not have this group");
    answer.user.gid = gid;
    // Groups and home follow one another without a gap.
    memcpy(answer.groups + answer.user.groups, home, strlen(home) + 1);
    size_t groups_len = answer.user.groups * sizeof(uint32_t);
    tell(OP_DONE, 0, id, &answer, sizeof answer.user + groups_len + strlen(home), -1);
}

// ---- cleaning -------------------------------------------------------------------------------------------------------

// Empties a folder. Mount points in it stay: nobody in here can make one (no CAP_SYS_ADMIN), so they are the container's own.
// 0, or -1 with errno. What lies too deep is brought up to `top`, for the next pass.
static int empty(int folder, int top, int depth) {
    static uint32_t names;
    // Its own offset, from the beginning.
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
        // EISDIR is what Linux says of folders; POSIX and some file systems say EPERM (unlink(2)).
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
    // What is removed while a folder is read may make the reading skip something: so until nothing is found. The deadline is
    // looked at within.
    while (!is_empty(place->fd))
        if (empty(place->fd, place->fd, 0) < 0) return "a folder cannot be emptied";
    if (fstat(place->fd, &now) < 0) return "fstat";
    if ((now.st_uid != place->uid || now.st_gid != place->gid) && fchown(place->fd, place->uid, place->gid) < 0) return "fchown";
    if (now.st_mode != place->mode && fchmod(place->fd, place->mode & 07777) < 0) return "fchmod";
    errno = EEXIST;
    if (flistxattr(place->fd, NULL, 0) != place->attributes) return "a folder has attributes it had not";
    return NULL;
}

// An object goes by its owner's or its creator's word (sysvipc(7)), and the shim has no CAP_SYS_ADMIN: so as them.
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

// Tables of proc_sysvipc(5): a heading, then a line each: key, id, …; `uid_at` is the column of the owner, the creator's is two on.
// Until the table is empty: it may be longer than what is read of it at a time.
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
            // The last line of what was read may be cut off: the next round has it whole.
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

// Of what lies in /dev (which is the container's own, and root's, whom a function may be): names, kinds, modes, owners; not below
// mount points. The sum does not depend on the order.
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

// Files that the engine mounts into the container from outside: writes to them show in no layer.
static const char *const MOUNTED[] = {"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"};

static const char *look_at_self(struct self *self) {
    memset(self, 0, sizeof *self);
    for (int i = 0; i < (int)RLIM_NLIMITS; i++)
        if (getrlimit((__rlimit_resource_t)i, &self->limits[i]) < 0) return "getrlimit";
    if (sched_getaffinity(0, sizeof self->cpus, &self->cpus) < 0) return "sched_getaffinity";
    self->nice = getpriority(PRIO_PROCESS, 0);
    self->scheduler = sched_getscheduler(0);
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

// Remembers what the container is like while it is new. The folders that will be emptied come with it; one that is not empty now
// holds what the image brought, and is refused. Without folders: those of before, and only the rest is remembered anew.
static void op_seal(uint64_t id) {
    char *at = (char *)message + sizeof(struct head), *end = (char *)message + message_len;
    for (size_t i = 0; at < end && i < place_count; i++) close(places[i].fd);
    if (at < end) place_count = 0;
    while (at < end) {
        char *nul = memchr(at, 0, (size_t)(end - at));
        if (!nul || place_count == PLACES_MAX) return failed(id, EINVAL, "seal");
        struct place *place = &places[place_count];
        struct stat stat;
        place->fd = open(at, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        // What an image does not have, nobody can have written to: creating it would show in its layer.
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

static void op_clean(uint64_t id) {
    const char *problem = kill_all();
    for (size_t i = 0; !problem && i < place_count; i++) problem = refresh(&places[i]);
    if (!problem) problem = remove_ipc("/proc/sysvipc/shm", 7, remove_segment, "a shared memory segment cannot be removed");
    if (!problem) problem = remove_ipc("/proc/sysvipc/sem", 4, remove_semaphores, "a semaphore set cannot be removed");
    if (!problem) problem = remove_ipc("/proc/sysvipc/msg", 7, remove_queue, "a message queue cannot be removed");
    if (!problem) problem = compare_self();
    if (problem) failed(id, errno, problem);
    else done(id);
}

static void op_kill(uint64_t id) {
    const char *problem = kill_all();
    if (problem) failed(id, errno, problem);
    else done(id);
}

// ---- the loop -------------------------------------------------------------------------------------------------------

// The next request into `message` and `fds`. False: the daemon is gone.
static int receive(void) {
    struct iovec part = {message, sizeof message};
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(FDS_MAX * sizeof(int))];
    } control;
    struct msghdr in = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control.space};
    ssize_t len;
    while ((len = recvmsg(daemon_fd, &in, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) {}
    if (len <= 0) return 0;
    fd_count = 0;
    for (struct cmsghdr *one = CMSG_FIRSTHDR(&in); one; one = CMSG_NXTHDR(&in, one)) {
        if (one->cmsg_level != SOL_SOCKET || one->cmsg_type != SCM_RIGHTS) continue;
        size_t count = (one->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count && fd_count < FDS_MAX; i++)
            memcpy(&fds[fd_count++], CMSG_DATA(one) + i * sizeof(int), sizeof(int));
    }
    if (in.msg_flags & (MSG_TRUNC | MSG_CTRUNC) || (size_t)len < sizeof(struct head)) give_up("a message does not fit");
    message_len = (size_t)len;
    return 1;
}

static void answer(void) {
    struct head head;
    memcpy(&head, message, sizeof head);
    // Of KILL and CLEAN: how long it may take.
    deadline_ms = now_ms() + head.value;
    switch (head.op) {
    case OP_EXEC: op_exec(head.id); break;
    case OP_SIGNAL: op_signal(head.id, head.value); break;
    case OP_LISTEN: op_socket(head.id, head.value, 1); break;
    case OP_CONNECT: op_socket(head.id, head.value, 0); break;
    case OP_KILL: op_kill(head.id); break;
    case OP_CLEAN: op_clean(head.id); break;
    case OP_SEAL: op_seal(head.id); break;
    case OP_USER: op_user(head.id); break;
    default: failed(head.id, ENOSYS, "request");
    }
    close_fds();
}

int main(int count, char **arguments) {
    // It kills whatever it sees: only where that is nothing but a container.
    if (getpid() != 1) give_up("not process 1 of a PID namespace; it is started by `pilot serve` alone");
    if (count != 2) give_up("which socket?");
    for (int fd = open("/dev/null", O_RDWR); fd >= 0 && fd < 3; fd = open("/dev/null", O_RDWR)) {}

    sigset_t all, child;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    signals_fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    if (signals_fd < 0) give_up("signalfd");

    struct sockaddr_un daemon = {.sun_family = AF_UNIX};
    if (strlen(arguments[1]) >= sizeof daemon.sun_path) give_up("the socket's path is too long");
    strcpy(daemon.sun_path, arguments[1]);
    daemon_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (daemon_fd < 0 || connect(daemon_fd, (struct sockaddr *)&daemon, sizeof daemon) < 0) give_up("the daemon is not there");
    struct timeval patience = {SEND_S_MAX, 0};
    setsockopt(daemon_fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    tell(OP_HELLO, PROTOCOL, 0, NULL, 0, -1);

    for (;;) {
        struct pollfd ready[2] = {{daemon_fd, POLLIN, 0}, {signals_fd, POLLIN, 0}};
        if (poll(ready, 2, -1) < 0 && errno != EINTR) give_up("poll");
        if (ready[1].revents) {
            struct signalfd_siginfo info;
            while (read(signals_fd, &info, sizeof info) > 0) {}
            reap();
        }
        if (ready[0].revents) {
            if (!receive()) _exit(0);
            answer();
        }
    }
}
