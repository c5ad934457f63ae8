// Shared by the parts of the shim: message layout and functions. See shim.c.

#ifndef PILOT_SHIM_H
#define PILOT_SHIM_H

#include <stddef.h>
#include <stdint.h>

#define MESSAGE_MAX (64 * 1024)
#define FDS_MAX 3
#define GROUPS_MAX 32

enum op {
    OP_EXEC = 1,
    OP_SIGNAL,
    OP_LISTEN,
    OP_CONNECT,
    OP_KILL,
    OP_CLEAN,
    OP_SEAL,
    OP_USER,
    OP_REST,
    OP_HELLO = 100,
    OP_DONE,
    OP_FAILED,
    OP_EXITED,
};

// Header of messages in both directions; what follows depends on `op`.
struct head {
    uint32_t op;
    uint32_t value;
    uint64_t id;  // of the request; for EXEC also of the process
};

// The current request and its descriptors.
extern uint8_t message[MESSAGE_MAX];
extern size_t message_len;
extern int fds[FDS_MAX];
extern size_t fd_count;

// The deadline of the current request, in now_ms()'s milliseconds.
extern uint64_t deadline_ms;

uint64_t now_ms(void);

// Answers: empty; the failed step with its error; a payload (or NULL) with a descriptor (or -1).
void done(uint64_t id);
void failed(uint64_t id, int error, const char *what);
void tell(uint32_t op, uint32_t value, uint64_t id, const void *payload, size_t len, int fd);

// Ends every other process. Returns NULL, or what prevented it.
const char *kill_all(void);

// The contents of a regular file, or an empty text. The image controls what is there (it may be a pipe). Valid until the next
// call.
char *text_of(const char *path);
int number_of(const char *text, uint32_t *number);

// Request handlers in shim_users.c and shim_clean.c.
void op_user(uint64_t id);
void op_seal(uint64_t id);
void op_clean(uint64_t id);

#endif
