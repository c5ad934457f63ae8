// The holder: shows inputs to the processes of a sandbox or container that cannot receive descriptors. It runs beside the worker as the
// worker's user, gets files from the daemon, and has them open: /proc/PID/fd/N is the input (proc_pid_fd(5)).
//
// A static program without a C library, because it runs in any root, and its start must cost little. It has nothing that the worker may
// not have: the worker can kill it or look into it, and harms only itself. It decides nothing: the daemon says which numbers the files
// get, so that no number is used twice. It ends when the daemon closes the connection.
//
// Its descriptors: 0 this program, 1 the connection to the daemon (SOCK_SEQPACKET), 2 the null device, from FIRST on the inputs. Its
// only peer is crates/base/protocols/src/holder.rs.

#include <stddef.h>
#include <stdint.h>

#include <asm/unistd.h>

#define EINTR 4
#define SOL_SOCKET 1
#define SCM_RIGHTS 1

#define CONNECTION 1
#define FDS_MAX 16
// Below are the numbers that the kernel chooses for files that arrive.
#define FIRST 32

// A request. With files: they get the numbers from `first` on, and there is an answer. Without: these numbers are closed.
struct request {
    uint32_t first;
    uint32_t count;
};

// The kernel's layout (recvmsg(2), cmsg(3)).
struct iovec {
    void *base;
    size_t len;
};

struct msghdr {
    void *name;
    int32_t name_len;
    struct iovec *parts;
    size_t part_count;
    void *control;
    size_t control_len;
    uint32_t flags;
};

struct rights {
    size_t len;
    int32_t level;
    int32_t type;
    int32_t fds[FDS_MAX];
};

#if defined(__x86_64__)
__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tand $-16, %rsp\n\tcall hold\n");

static long call(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
__asm__(".globl _start\n_start:\n\tbl hold\n");

static long call(long number, long a, long b, long c) {
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
}
#else
#error "inputs of other runtimes than Python are not supported on this architecture"
#endif

static _Noreturn void leave(void) {
    for (;;) call(__NR_exit_group, 0, 0, 0);
}

// What became of the last request: 0, or the kernel's error.
static void say(uint8_t error) {
    if (call(__NR_write, CONNECTION, (long)&error, 1) != 1) leave();
}

_Noreturn void hold(void) {
    // Its descriptors are in place.
    say(0);
    for (;;) {
        struct request request;
        struct rights rights;
        struct iovec part = {&request, sizeof request};
        struct msghdr in;
        in.name = NULL;
        in.name_len = 0;
        in.parts = &part;
        in.part_count = 1;
        in.control = &rights;
        in.control_len = sizeof rights;
        in.flags = 0;
        long len = call(__NR_recvmsg, CONNECTION, (long)&in, 0);
        if (len == -EINTR) continue;
        if (len != sizeof request || request.first < FIRST) leave();
        size_t count = 0;
        if (in.control_len >= offsetof(struct rights, fds) && rights.level == SOL_SOCKET && rights.type == SCM_RIGHTS)
            count = (rights.len - offsetof(struct rights, fds)) / sizeof(int32_t);
        if (count == 0) {
            for (uint32_t i = 0; i < request.count; i++) call(__NR_close, request.first + i, 0, 0);
            continue;
        }
        long error = 0;
        for (size_t i = 0; i < count; i++) {
            long given = call(__NR_dup3, rights.fds[i], (long)(request.first + i), 0);
            if (given < 0) error = -given;
            call(__NR_close, rights.fds[i], 0, 0);
        }
        say((uint8_t)error);
    }
}
