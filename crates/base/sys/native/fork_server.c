// The inner loop of a template: waits, forks and reaps. Also what a forked child does before its language runtime continues.
//
// Loaded into the interpreter as a shared object. It is written in C without a C library for two reasons:
// - A template shares its pages with its children, and every page that it writes to after a fork is copied, at about 2 us each.
//   The same loop in Python wrote to 250 pages per fork; this one writes to its stack and its table only. A child that needs
//   nothing else runs its own loop from here: the way back through ctypes would copy 20 pages.
// - A child that is not isolated yet runs nothing else: it allocates nothing, locks nothing and only calls the kernel.
//   (fork itself is the C library's, passed as a pointer, for its pthread_atfork handlers.)
//
// It does not parse JSON, start templates or import modules: a message that does not begin with the magic is returned to the
// caller. The protocol is in crates/path/wire/PROTOCOL.md, section 2.
//
// Single-threaded. Every kernel interface is cited by its man page.

#include <stddef.h>
#include <stdint.h>

#include <asm/unistd.h>
#include <linux/capability.h>
#include <linux/prctl.h>
#include <linux/seccomp.h>

#define EINTR 4
#define EAGAIN 11
#define ENOMEM 12
#define EBUSY 16
#define EINVAL 22
#define ECONNRESET 104

#define FRAME_READY 16

#define FDS_MAX 16
#define CHILDREN_MAX 8192
#define REGIONS_MAX 4
#define SPANS_MAX 64

enum role { ROLE_CHANNEL, ROLE_LOG, ROLE_PID, ROLE_NAMESPACE, ROLE_CGROUP };

enum result {
    RESULT_CLOSED = 0,   // the daemon closed the control channel
    RESULT_MESSAGE = 1,  // a message for the caller: message, message_len, fds, fd_count
    RESULT_CHILD = 2,    // this is a child, isolated: channel, forked_ns, sandboxed_ns. Not if the server has a `loop`
    RESULT_REFUSED = 3,  // this is a child, and a step failed: channel, step, error
    RESULT_BROKEN = 4,   // the control channel or the signal descriptor failed: error
};

enum step {
    STEP_GROUP = 1,
    STEP_LOG,
    STEP_CGROUP,
    STEP_NAMESPACE,
    STEP_DIRECTORY,
    STEP_CAPABILITIES,
    STEP_FILTER,
    STEP_RANDOM,
    STEP_LOOP,
};

// The descriptors of an event loop that a worker inherits (inherited_loop.py): an epoll instance, under two numbers, and the two
// sockets by which other threads wake the loop.
enum { LOOP_EPOLL, LOOP_EPOLL_AGAIN, LOOP_WAKE_READ, LOOP_WAKE_WRITE, LOOP_FDS };

// Start of a request to fork a worker of this template's own function; one role per descriptor follows.
struct request {
    uint8_t magic[4];  // "FORK"
    uint32_t count;
    uint64_t id;
    uint8_t roles[FDS_MAX];
};

// Memory that every child fills with its own random bytes: the state of a generator that siblings must not share.
struct region {
    uint8_t *at;
    uint64_t len;
};

// Memory of the template that becomes huge pages (huge_pages.py), in multiples of HUGE_LEN.
struct span {
    uint64_t at;
    uint64_t len;
};

struct child {
    int32_t pid;
    uint32_t has_old_pages;  // it was forked before its template made memory huge that it may still have as it was
    uint64_t id;
};

// Shared with the caller (native.py), which also fixes the order.
struct fork_server {
    int32_t (*fork)(void);  // pid_t: the upper half of the register says nothing
    void (*after_fork)(void);    // of the interpreter: what it must do in a child first
    void *(*call)(void *);       // of the interpreter: calls an object without arguments
    void *loop;                  // the object that a child calls that has said READY. It ends the process. NULL: the caller goes on
    const char *directory;       // of a child; NULL: unchanged
    const void *filter;          // struct sock_filter array; NULL: none
    uint64_t filter_len;         // instructions
    uint64_t bounding;           // capabilities to remove from the bounding set, one bit each
    int32_t control;
    int32_t signals;             // signalfd for SIGCHLD
    uint8_t *message;
    uint64_t message_max;
    struct child *children;      // CHILDREN_MAX of them; pid 0 is free
    struct region regions[REGIONS_MAX];
    uint64_t region_count;
    struct span spans[SPANS_MAX];
    uint64_t span_count;
    uint64_t child_count;
    uint64_t old_page_children;  // that have old pages
    uint64_t old_pages_len;      // what they may have at most, bytes
    int32_t channel_at;          // a child's descriptor number for its channel; unused in the template
    int32_t event_loop[LOOP_FDS];
    // Out.
    uint64_t message_len;
    int32_t fds[FDS_MAX];
    uint32_t fd_count;
    int32_t channel;
    uint64_t forked_ns;
    uint64_t sandboxed_ns;
    int32_t step;
    int32_t error;
    uint64_t signal_mask;          // of children: the mask from before pilot_watch
    uint8_t in_own_pid_namespace;  // 0 once children are made in another one
    uint8_t says_ready;            // no user code runs before READY, so it is sent here
    uint8_t has_event_loop;        // a child makes `event_loop` anew
};

// ---- system calls ---------------------------------------------------------------------------------------------------

#if defined(__x86_64__)
static long call(long number, long a, long b, long c, long d, long e) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
static long call(long number, long a, long b, long c, long d, long e) {
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    return x0;
}
#else
#error "no system call sequence for this architecture: templates there use the loop in Python"
#endif

#define CALL1(n, a) call(n, (long)(a), 0, 0, 0, 0)
#define CALL2(n, a, b) call(n, (long)(a), (long)(b), 0, 0, 0)
#define CALL3(n, a, b, c) call(n, (long)(a), (long)(b), (long)(c), 0, 0)
#define CALL4(n, a, b, c, d) call(n, (long)(a), (long)(b), (long)(c), (long)(d), 0)
#define CALL5(n, a, b, c, d, e) call(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e))

struct pollfd { int fd; short events; short revents; };
struct iovec { void *base; size_t len; };
struct msghdr { void *name; uint32_t name_len; struct iovec *iov; size_t iov_len; void *control; size_t control_len; int flags; };
struct cmsghdr { size_t len; int level; int type; };
struct timespec64 { int64_t sec; int64_t nsec; };
struct filter_program { uint16_t len; const void *filter; };
#if defined(__x86_64__)
struct __attribute__((packed)) epoll_event { uint32_t events; uint64_t data; };
#else
struct epoll_event { uint32_t events; uint64_t data; };
#endif

#define POLLIN 1
#define SOL_SOCKET 1
#define SCM_RIGHTS 1
#define MSG_CMSG_CLOEXEC 0x40000000
#define MSG_CTRUNC 0x8
#define MSG_TRUNC 0x20
#define MSG_NOSIGNAL 0x4000
#define WNOHANG 1
#define CLONE_NEWPID 0x20000000
#define SIG_BLOCK 0
#define SIG_SETMASK 2
#define SFD_CLOEXEC 02000000
#define O_CLOEXEC 02000000
#define SFD_NONBLOCK 04000
#define SIGCHLD 17
#define SIGNAL_SET_LEN 8
#define CLOCK_MONOTONIC 1
#define AF_UNIX 1
#define SOCK_STREAM 1
#define SOCK_CLOEXEC O_CLOEXEC
#define SOCK_NONBLOCK 04000
#define EPOLL_CLOEXEC O_CLOEXEC
#define EPOLL_CTL_ADD 1
#define EPOLLIN 1

static uint64_t now_ns(void) {
    struct timespec64 now = {0, 0};
    CALL2(__NR_clock_gettime, CLOCK_MONOTONIC, &now);
    return (uint64_t)now.sec * 1000000000u + (uint64_t)now.nsec;
}

static void close_all(struct fork_server *s) {
    for (uint32_t i = 0; i < s->fd_count; i++) CALL1(__NR_close, s->fds[i]);
    s->fd_count = 0;
}

// The compiler may emit calls to these.
void *memset(void *to, int byte, size_t len) {
    volatile uint8_t *at = to;
    while (len--) *at++ = (uint8_t)byte;
    return to;
}
void *memcpy(void *to, const void *from, size_t len) {
    volatile uint8_t *at = to;
    const uint8_t *next = from;
    while (len--) *at++ = *next++;
    return to;
}

// ---- messages to the daemon -----------------------------------------------------------------------------------------

static char *put_text(char *at, const char *text) {
    while (*text) *at++ = *text++;
    return at;
}

static char *put_number(char *at, uint64_t number) {
    char digits[20];
    int count = 0;
    do digits[count++] = (char)('0' + number % 10); while (number /= 10);
    while (count) *at++ = digits[--count];
    return at;
}

static void tell(struct fork_server *s, const char *op, uint64_t id, const char *key, uint64_t value) {
    char text[128];
    char *at = put_text(text, "{\"op\":\"");
    at = put_text(at, op);
    at = put_text(at, "\",\"id\":");
    at = put_number(at, id);
    at = put_text(at, ",\"");
    at = put_text(at, key);
    at = put_text(at, "\":");
    at = put_number(at, value);
    at = put_text(at, "}");
    // A closed connection is noticed at the next receive.
    while (CALL5(__NR_sendto, s->control, text, at - text, MSG_NOSIGNAL, 0) == -EINTR) {}
}

static void tell_failed(struct fork_server *s, uint64_t id, const char *what, long error) {
    char text[160];
    char *at = put_text(text, "{\"op\":\"fork_failed\",\"id\":");
    at = put_number(at, id);
    at = put_text(at, ",\"error\":\"");
    at = put_text(at, what);
    at = put_text(at, ": errno ");
    at = put_number(at, (uint64_t)-error);
    at = put_text(at, "\"}");
    while (CALL5(__NR_sendto, s->control, text, at - text, MSG_NOSIGNAL, 0) == -EINTR) {}
}

// ---- signals --------------------------------------------------------------------------------------------------------

// From now on, ends of children are read from a descriptor. 0, or -errno.
int pilot_watch(struct fork_server *s) {
    uint64_t children = 1ull << (SIGCHLD - 1);
    long error = CALL4(__NR_rt_sigprocmask, SIG_BLOCK, &children, &s->signal_mask, SIGNAL_SET_LEN);
    if (error >= 0) error = CALL4(__NR_signalfd4, -1, &children, SIGNAL_SET_LEN, SFD_CLOEXEC | SFD_NONBLOCK);
    if (error < 0) return (int)error;
    s->signals = (int32_t)error;
    return 0;
}

// In a child: restores the signals from before pilot_watch.
void pilot_unwatch(struct fork_server *s) {
    CALL1(__NR_close, s->signals);
    CALL4(__NR_rt_sigprocmask, SIG_SETMASK, &s->signal_mask, 0, SIGNAL_SET_LEN);
}

// ---- children -------------------------------------------------------------------------------------------------------

// Adds a child to the table; 0 when it is full.
int pilot_track(struct fork_server *s, int32_t pid, uint64_t id) {
    for (int i = 0; i < CHILDREN_MAX; i++) {
        if (s->children[i].pid == 0) {
            s->children[i] = (struct child){pid, 0, id};
            s->child_count++;
            return 1;
        }
    }
    return 0;
}

static void reap(struct fork_server *s) {
    uint8_t ignored[128];  // struct signalfd_siginfo, signalfd(2)
    while (CALL3(__NR_read, s->signals, ignored, sizeof ignored) > 0) {}
    for (;;) {
        int status = 0;
        long pid = CALL4(__NR_wait4, -1, &status, WNOHANG, 0);
        if (pid <= 0) return;
        for (int i = 0; i < CHILDREN_MAX; i++) {
            // Ignore other processes: started by user code at import, or orphans of this PID namespace.
            if (s->children[i].pid != pid) continue;
            s->children[i].pid = 0;
            s->child_count--;
            if (s->children[i].has_old_pages && !--s->old_page_children) s->old_pages_len = 0;
            int ended_by = status & 0x7f;  // WTERMSIG, WEXITSTATUS: wait(2)
            if (ended_by) tell(s, "exited", s->children[i].id, "signal", (uint64_t)ended_by);
            else tell(s, "exited", s->children[i].id, "code", (uint64_t)(status >> 8 & 0xff));
            break;
        }
    }
}

// Every step that takes rights away; each one comes before the rights that it needs are gone. 0, or the step that failed.
static int confine(struct fork_server *s, const struct request *r) {
    int step = STEP_GROUP;
    // kill(0, ...) would reach the template and its other children: process groups are not limited to a PID namespace (kill(2)). A session
    // of its own would cost 8 us and more (CONFIG_SCHED_AUTOGROUP).
    long error = CALL2(__NR_setpgid, 0, 0);
    for (uint32_t i = 0; i < s->fd_count && error >= 0; i++) {
        if (r->roles[i] != ROLE_LOG) continue;
        step = STEP_LOG;
        error = CALL3(__NR_dup3, s->fds[i], 1, 0);
        if (error >= 0) error = CALL3(__NR_dup3, s->fds[i], 2, 0);
    }
    for (uint32_t i = 0; i < s->fd_count && error >= 0; i++) {
        if (r->roles[i] != ROLE_CGROUP) continue;
        step = STEP_CGROUP;
        error = CALL3(__NR_write, s->fds[i], "0", 1);
    }
    for (uint32_t i = 0; i < s->fd_count && error >= 0; i++) {
        if (r->roles[i] != ROLE_NAMESPACE) continue;
        step = STEP_NAMESPACE;
        error = CALL2(__NR_setns, s->fds[i], 0);
    }
    if (error >= 0 && s->directory) {
        step = STEP_DIRECTORY;
        error = CALL1(__NR_chdir, s->directory);
    }
    if (error >= 0) {
        step = STEP_CAPABILITIES;
        // Without CAP_SETPCAP the bounding set stays, which is harmless with no_new_privs (capabilities(7)).
        for (int i = 0; i < 64; i++)
            if (s->bounding >> i & 1) CALL5(__NR_prctl, PR_CAPBSET_DROP, i, 0, 0, 0);
        error = CALL5(__NR_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
        struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
        struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
        if (error >= 0) error = CALL2(__NR_capset, &header, none);
        if (error >= 0) error = CALL5(__NR_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (error >= 0) error = CALL5(__NR_prctl, PR_SET_DUMPABLE, 0, 0, 0, 0);
    }
    if (error >= 0 && s->filter) {
        step = STEP_FILTER;
        struct filter_program program = {(uint16_t)s->filter_len, s->filter};
        error = CALL3(__NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
    }
    for (uint64_t i = 0; i < s->region_count && error >= 0; i++) {
        // Up to 256 bytes are returned at once (getrandom(2)).
        for (uint64_t done = 0; done < s->regions[i].len && error >= 0;) {
            uint64_t len = s->regions[i].len - done;
            step = STEP_RANDOM;
            error = CALL3(__NR_getrandom, s->regions[i].at + done, len < 256 ? len : 256, 0);
            if (error > 0) done += (uint64_t)error;
        }
    }
    s->error = error < 0 ? (int32_t)-error : 0;
    return error < 0 ? step : 0;
}

static long watch_with(int32_t epoll, int32_t fd) {
    struct epoll_event event = {EPOLLIN, (uint64_t)fd};  // the interpreter looks for the number there: epoll_ctl(2)
    return CALL4(__NR_epoll_ctl, epoll, EPOLL_CTL_ADD, fd, &event);
}

// Gives the child kernel objects of its own behind the descriptors of its event loop: with those of the template, the loops of all
// workers would wake each other. It watches what the template's watched, and the channel. 0, or -errno.
static long renew_event_loop(struct fork_server *s) {
    const int32_t *loop = s->event_loop;
    long epoll = CALL1(__NR_epoll_create1, EPOLL_CLOEXEC);
    if (epoll < 0) return epoll;
    long error = CALL3(__NR_dup3, epoll, loop[LOOP_EPOLL], O_CLOEXEC);
    if (error >= 0) error = CALL3(__NR_dup3, epoll, loop[LOOP_EPOLL_AGAIN], O_CLOEXEC);
    CALL1(__NR_close, epoll);
    int32_t pair[2] = {-1, -1};
    if (error >= 0) error = CALL4(__NR_socketpair, AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair);
    for (int i = 0; i < 2 && pair[i] >= 0; i++) {
        if (error >= 0) error = CALL3(__NR_dup3, pair[i], loop[LOOP_WAKE_READ + i], O_CLOEXEC);
        CALL1(__NR_close, pair[i]);
    }
    if (error >= 0) error = watch_with(loop[LOOP_EPOLL], loop[LOOP_WAKE_READ]);
    if (error >= 0) error = watch_with(loop[LOOP_EPOLL], s->channel);
    return error < 0 ? error : 0;
}

// READY (section 1 of the protocol). It is sent from here so that the daemon's response, the first invocation, travels while
// the interpreter continues. 0, or -errno.
static long say_ready(struct fork_server *s) {
    char frame[16 + 128];
    char *at = put_text(frame + 16, "{\"forked_ns\":");
    at = put_number(at, s->forked_ns);
    at = put_text(at, ",\"sandboxed_ns\":");
    at = put_number(at, s->sandboxed_ns);
    at = put_text(at, ",\"initialised_ns\":");
    at = put_number(at, s->sandboxed_ns);
    at = put_text(at, ",\"inputs_max\":64,\"window\":262144}");
    uint64_t len = (uint64_t)(at - frame);
    memset(frame, 0, 16);
    frame[0] = (char)(len - 16);  // meta_len, little-endian, below 256
    frame[12] = FRAME_READY;
    long written;
    do written = CALL5(__NR_sendto, s->channel, frame, len, MSG_NOSIGNAL, 0); while (written == -EINTR);
    return written < 0 ? written : 0;
}

static int become_child(struct fork_server *s, const struct request *r) {
    s->forked_ns = now_ns();
    CALL1(__NR_close, s->control);
    pilot_unwatch(s);
    s->channel = -1;
    for (uint32_t i = 0; i < s->fd_count; i++)
        if (r->roles[i] == ROLE_CHANNEL) s->channel = s->fds[i];
    s->step = confine(s, r);
    CALL3(__NR_dup3, s->channel, s->channel_at, O_CLOEXEC);
    s->channel = s->channel_at;
    close_all(s);
    if (!s->step && s->has_event_loop) {
        long error = renew_event_loop(s);
        if (error < 0) {
            s->step = STEP_LOOP;
            s->error = (int32_t)-error;
        }
    }
    s->sandboxed_ns = now_ns();
    // A closed connection is noticed when the channel is read.
    if (!s->step && s->says_ready) say_ready(s);
    s->after_fork();
    if (!s->step && s->says_ready && s->loop) {
        s->call(s->loop);
        CALL1(__NR_exit_group, 1);
    }
    return s->step ? RESULT_REFUSED : RESULT_CHILD;
}

// True in the child.
static int fork_one(struct fork_server *s, const struct request *r) {
    int pid_namespace = -1, has_channel = 0;
    for (uint32_t i = 0; i < s->fd_count; i++) {
        if (r->roles[i] == ROLE_PID) pid_namespace = s->fds[i];
        if (r->roles[i] == ROLE_CHANNEL) has_channel = 1;
    }
    long error = has_channel ? 0 : -EINVAL;
    const char *what = "no channel";
    if (pid_namespace >= 0) {
        what = "setns";
        error = CALL2(__NR_setns, pid_namespace, CLONE_NEWPID);
        if (error >= 0) s->in_own_pid_namespace = 0;
    } else if (!s->in_own_pid_namespace) {
        what = "no pid namespace";  // it would be made in that of the previous child
        error = -EINVAL;
    }
    if (error < 0) {
        tell_failed(s, r->id, what, error);
        return 0;
    }
    int32_t pid = s->fork();
    if (pid == 0) return 1;
    if (pid < 0) tell_failed(s, r->id, "fork", -EAGAIN);  // the C library does not pass the error on
    else if (!pilot_track(s, pid, r->id)) tell_failed(s, r->id, "too many children", -EAGAIN);
    return 0;
}

// ---- huge pages -----------------------------------------------------------------------------------------------------

#define MADV_COLLAPSE 25
#define HUGE_LEN (2ul << 20)
// No request for this long: nobody waits. Then a pause after each huge page, for others that want this CPU.
#define QUIET_NS 5000000
#define BREATH_NS 1000000
// Children that live keep the pages from before, so that there are two copies until they end. More than this waits for their end.
#define SECOND_COPY_MAX (64ul << 20)

static int may_make_huge(const struct fork_server *s) {
    return s->span_count && s->old_pages_len < SECOND_COPY_MAX;
}

// All children have what was just made huge as it was.
static void note_old_pages(struct fork_server *s) {
    if (!s->child_count) return;
    s->old_pages_len += HUGE_LEN;
    for (int i = 0; i < CHILDREN_MAX && s->old_page_children < s->child_count; i++) {
        struct child *child = &s->children[i];
        if (!child->pid || child->has_old_pages) continue;
        child->has_old_pages = 1;
        s->old_page_children++;
    }
}

// Makes one huge page (madvise(2)). It takes some milliseconds, for which a request may have to wait.
static void make_huge(struct fork_server *s) {
    struct span *span = &s->spans[s->span_count - 1];
    span->len -= HUGE_LEN;
    long error = CALL3(__NR_madvise, span->at + span->len, HUGE_LEN, MADV_COLLAPSE);
    if (!error) note_old_pages(s);
    if (!span->len) s->span_count--;
    // No memory, or the limit of the cgroup is near. Other errors concern this page only.
    if (error == -ENOMEM || error == -EBUSY) s->span_count = 0;
}

// ---- the loop -------------------------------------------------------------------------------------------------------

// Receives one message into the caller's buffers. Its length, 0 at the end, or -errno.
static long receive(struct fork_server *s) {
    union {
        struct cmsghdr header;
        uint8_t space[sizeof(struct cmsghdr) + FDS_MAX * sizeof(int32_t)];
    } ancillary;
    struct iovec part = {s->message, s->message_max};
    struct msghdr header = {0, 0, &part, 1, &ancillary, sizeof ancillary, 0};
    long len;
    do len = CALL3(__NR_recvmsg, s->control, &header, MSG_CMSG_CLOEXEC); while (len == -EINTR);
    s->fd_count = 0;
    if (len > 0 && header.control_len >= sizeof(struct cmsghdr) && ancillary.header.level == SOL_SOCKET &&
        ancillary.header.type == SCM_RIGHTS) {
        const int32_t *given = (const int32_t *)(ancillary.space + sizeof(struct cmsghdr));
        uint32_t count = (uint32_t)((ancillary.header.len - sizeof(struct cmsghdr)) / sizeof(int32_t));
        for (uint32_t i = 0; i < count && i < FDS_MAX; i++) s->fds[s->fd_count++] = given[i];
    }
    if (len > 0 && header.flags & (MSG_TRUNC | MSG_CTRUNC)) len = 1;  // one byte is no message: the caller rejects it
    return len;
}

static int is_request(const struct fork_server *s, const struct request *r, uint64_t len) {
    return len >= offsetof(struct request, roles) && r->magic[0] == 'F' && r->magic[1] == 'O' && r->magic[2] == 'R' &&
           r->magic[3] == 'K' && r->count == s->fd_count && len == offsetof(struct request, roles) + r->count;
}

// Serves until there is something for the caller: see enum result.
int pilot_serve(struct fork_server *s) {
    int64_t pause_ns = QUIET_NS;
    for (;;) {
        struct pollfd waiting[2] = {{s->control, POLLIN, 0}, {s->signals, POLLIN, 0}};
        struct timespec64 pause = {0, pause_ns};
        long ready = CALL5(__NR_ppoll, waiting, 2, may_make_huge(s) ? &pause : 0, 0, 0);
        if (ready == -EINTR) continue;
        if (ready == 0) {
            make_huge(s);
            pause_ns = BREATH_NS;
            continue;
        }
        pause_ns = QUIET_NS;
        if (ready < 0) {
            s->error = (int32_t)-ready;
            return RESULT_BROKEN;
        }
        if (waiting[1].revents) reap(s);
        if (!waiting[0].revents) continue;
        long len = receive(s);
        if (len == 0 || len == -ECONNRESET) return RESULT_CLOSED;
        if (len < 0) {
            s->error = (int32_t)-len;
            return RESULT_BROKEN;
        }
        s->message_len = (uint64_t)len;
        const struct request *r = (const struct request *)s->message;
        if (!is_request(s, r, s->message_len)) return RESULT_MESSAGE;
        if (fork_one(s, r)) return become_child(s, r);
        close_all(s);
    }
}
