// The shim: process 1 of every container. It starts programs for the daemon, hands out sockets of the container's network, reaps
// processes, and cleans the container after a use.
//
// A static program without dependencies, because it runs in any image. Single-threaded. Every table and loop has a bound; a
// request that exceeds one is rejected, never truncated.
//
// It makes no decisions: requests say what runs as which user, which folders are emptied and how long that may take. Its only
// peer is crates/side/container/src/shim/.
//
// The daemon listens and the shim connects, once: the container has no socket that the function could connect to. When this
// connection ends (the daemon closed it, or died), the shim exits, and with it everything in the container (pid_namespaces(7)).
//
// Other processes in the container may be root, but have none of the shim's capabilities. They cannot trace the shim (ptrace(2))
// or signal it (process 1 receives only signals that it handles). What they can still change of it (its limits: prlimit(2)) is
// compared before each further use.
//
// shim_users.c reads the image's users, shim_clean.c cleans the container.

#define _GNU_SOURCE
#include "shim.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROTOCOL 2
#define PROCESSES_MAX 1024  // requested ones that run at the same time
#define WORDS_MAX 4096      // arguments and variables of one program, together
#define BACKLOG 1024
#define SEND_S_MAX 10       // a daemon that does not read for this long is gone
// When the kernel runs out of memory, it should kill this before the daemon (proc_pid_oom_score_adj(5)).
#define OOM_SCORE "300"

// Payload of EXEC. Groups (u32 each), working folder, arguments and variables (each ended by NUL) follow.
struct exec {
    uint32_t uid;
    uint32_t gid;
    uint32_t groups;
    uint32_t arguments;
    uint32_t variables;
};

// Payload of SIGNAL.
struct signal_target {
    uint64_t process;
    uint32_t whole_group;
    uint32_t reserved;
};

struct process {
    pid_t pid;  // 0: free
    uint64_t id;
};

static int daemon_fd;
static int signals_fd;
static struct process processes[PROCESSES_MAX];
// Whether the daemon waits until nothing runs any more, and which request does.
static int rest_is_awaited;
static uint64_t rest_id;

uint8_t message[MESSAGE_MAX];
size_t message_len;
int fds[FDS_MAX];
size_t fd_count;

uint64_t deadline_ms;

// ---- small things ---------------------------------------------------------------------------------------------------

uint64_t now_ms(void) {
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

void tell(uint32_t op, uint32_t value, uint64_t id, const void *payload, size_t len, int fd) {
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
        if (errno != EINTR) _exit(0);  // The connection is closed.
    }
}

void done(uint64_t id) { tell(OP_DONE, 0, id, NULL, 0, -1); }

void failed(uint64_t id, int error, const char *what) {
    tell(OP_FAILED, (uint32_t)error, id, what, strlen(what), -1);
}

// ---- processes ------------------------------------------------------------------------------------------------------

static struct process *process_of(uint64_t id) {
    for (size_t i = 0; i < PROCESSES_MAX; i++)
        if (processes[i].pid && processes[i].id == id) return &processes[i];
    return NULL;
}

// Reaps ended processes and reports those that were requested. Returns whether children are left.
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

// Drops every capability for good, so that not even root's next execve(2) restores one.
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

// Runs in the child. Returns the step that failed.
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
    // execvp searches the PATH of `environ`, so set it to the function's.
    environ = (char **)(uintptr_t)(p->words + p->exec->arguments + 1);
    execvp(p->words[0], p->words);
    return "execve";
}

// Parses an EXEC's payload into `program`. False: it is malformed.
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
    // The process id cannot be reused: this process has not reaped it yet.
    if (process && kill(target.whole_group ? -process->pid : process->pid, (int)number) < 0 && errno != ESRCH)
        return failed(id, errno, "kill");
    done(id);
}

// Whether /proc shows any other process.
static int others(void) {
    DIR *proc = opendir("/proc");
    if (!proc) return 1;
    int found = 0;
    for (struct dirent *entry; !found && (entry = readdir(proc));)
        found = entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && strcmp(entry->d_name, "1") != 0;
    closedir(proc);
    return found;
}

const char *kill_all(void) {
    for (;;) {
        // Kills all processes at once, including any that they are forking (kill(2)); process 1 is excluded.
        if (kill(-1, SIGKILL) < 0 && errno != ESRCH) return "kill";
        if (!reap() && !others()) return NULL;
        if (now_ms() >= deadline_ms) {
            errno = ETIMEDOUT;
            return "a process does not end";
        }
        struct pollfd ended = {signals_fd, POLLIN, 0};
        // Processes that were moved in from outside are reaped outside, without a signal here; hence the timeout.
        poll(&ended, 1, 2);
        struct signalfd_siginfo info;
        while (read(signals_fd, &info, sizeof info) > 0) {}
    }
}

static void op_kill(uint64_t id) {
    const char *problem = kill_all();
    if (problem) failed(id, errno, problem);
    else done(id);
}

// The main loop answers it.
static void op_rest(uint64_t id) {
    if (rest_is_awaited) return failed(id, EBUSY, "rest");
    rest_is_awaited = 1;
    rest_id = id;
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
        // In progress: the daemon waits for the result, so that the shim never waits.
        step = "connect";
    }
    int error = errno;
    if (step) failed(id, error, step);
    else tell(OP_DONE, 0, id, NULL, 0, fd);
    close(fd);
}

// ---- the loop -------------------------------------------------------------------------------------------------------

// Reads the next request into `message` and `fds`. False: the daemon is gone.
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
    // For KILL and CLEAN: how long it may take.
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
    case OP_REST: op_rest(head.id); break;
    default: failed(head.id, ENOSYS, "request");
    }
    close_fds();
}

int main(int count, char **arguments) {
    // The shim kills every process that it sees, so it must run only in a container.
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
        // Orphans become children of process 1: without children, no process is left.
        if (rest_is_awaited && !reap()) {
            rest_is_awaited = 0;
            done(rest_id);
        }
    }
}
