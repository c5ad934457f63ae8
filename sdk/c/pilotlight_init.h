/*
 * What a function's initscripts have sent to it, for programs in C: those that ask for events by the Lambda Runtime API
 * (runtime = "provided"), and those that run once per invocation (a container with contract = "shim").
 *
 * The event comes with headers: `Pilot-Init-7` is the path of message 7, and `Pilot-Failed-Init-7` says why it is not there. A program that
 * runs once has them as variables, `PILOT_INIT_7` and `PILOT_FAILED_INIT_7`. Connections are `Pilot-Init-Conn-3` and `PILOT_INIT_CONN_3`: a
 * path to connect to, and where it leads. This file reads them, maps the messages and connects. C99 and POSIX
 * (_POSIX_C_SOURCE >= 200809L); it allocates nothing. Paths and mappings: a path is valid until the invocation has ended, a mapping until it
 * is released.
 *
 *     struct pilotlight_init init;
 *     struct pilotlight_msg weights;
 *     pilotlight_init_clear(&init);
 *     // For each header line of the event, for example in libcurl's CURLOPT_HEADERFUNCTION:
 *     pilotlight_init_header(&init, line, length);
 *     if (pilotlight_init_recv_msg(&init, 0, &weights) == 0) {
 *         use(weights.bytes, weights.len);
 *         pilotlight_init_release(&weights);
 *     } else {
 *         puts(pilotlight_init_why(&init, 0));
 *     }
 *     int database = pilotlight_init_get_conn(&init, 3, "tcp://db:5432");
 */
#ifndef PILOTLIGHT_INIT_H
#define PILOTLIGHT_INIT_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* An initscript sends at most 16 messages, and a shared one 8. */
#define PILOTLIGHT_MESSAGES_MAX 32
/* "/proc/PID/fd/N", and the end. */
#define PILOTLIGHT_PATH_LEN 64
/* Connections that an initscript hands over. */
#define PILOTLIGHT_CONNECTIONS_MAX 4
/* "tcp://HOST:PORT", and the end. */
#define PILOTLIGHT_ADDRESS_LEN 280
/* A longer reason is cut. */
#define PILOTLIGHT_WHY_LEN 256

/* One message, or why it is not there. */
struct pilotlight_entry {
    uint64_t id;
    char path[PILOTLIGHT_PATH_LEN]; /* empty: it is not there */
    char why[PILOTLIGHT_WHY_LEN];
};

/* One connection. */
struct pilotlight_connection {
    uint64_t id;
    char path[PILOTLIGHT_PATH_LEN]; /* empty: it is not there, or was taken */
    char address[PILOTLIGHT_ADDRESS_LEN];
    char why[PILOTLIGHT_WHY_LEN];
};

/* The messages of one invocation. Only the functions below read and write it. */
struct pilotlight_init {
    size_t count;
    struct pilotlight_entry entries[PILOTLIGHT_MESSAGES_MAX];
    size_t connection_count;
    struct pilotlight_connection connections[PILOTLIGHT_CONNECTIONS_MAX];
    char why[PILOTLIGHT_WHY_LEN]; /* why a script failed; empty: none has */
};

/* A mapped message. */
struct pilotlight_msg {
    const void *bytes; /* read-only; NULL if len is 0 */
    size_t len;
};

/* Before the headers of each event. */
static inline void pilotlight_init_clear(struct pilotlight_init *init) {
    init->count = init->connection_count = 0;
    init->why[0] = '\0';
}

static inline void pilotlight_copy(char *into, size_t room, const char *from, size_t len) {
    if (len >= room) {
        len = room - 1;
    }
    memcpy(into, from, len);
    into[len] = '\0';
}

static inline const struct pilotlight_entry *pilotlight_find(const struct pilotlight_init *init, uint64_t id) {
    for (size_t at = 0; at < init->count; at++) {
        if (init->entries[at].id == id) {
            return &init->entries[at];
        }
    }
    return NULL;
}

static inline struct pilotlight_connection *pilotlight_find_connection(struct pilotlight_init *init, uint64_t id) {
    for (size_t at = 0; at < init->connection_count; at++) {
        if (init->connections[at].id == id) {
            return &init->connections[at];
        }
    }
    return NULL;
}

/* `name` is the id; `value` is a path, a space and an address, or why there is none. */
static inline void pilotlight_add_connection(struct pilotlight_init *init, int failed, const char *name, size_t name_len, const char *value, size_t len) {
    struct pilotlight_connection *connection;
    const char *space = (const char *)memchr(value, ' ', len);
    size_t path_len = space == NULL ? 0 : (size_t)(space - value);
    uint64_t id = 0;
    for (size_t at = 0; at < name_len; at++) {
        uint64_t digit = (uint64_t)(name[at] - '0');
        if (name[at] < '0' || name[at] > '9' || id > (UINT64_MAX - digit) / 10) {
            return;
        }
        id = id * 10 + digit;
    }
    if (name_len == 0 || init->connection_count == PILOTLIGHT_CONNECTIONS_MAX) {
        return;
    }
    if (!failed && (space == NULL || path_len >= PILOTLIGHT_PATH_LEN || len - path_len > PILOTLIGHT_ADDRESS_LEN)) {
        return;
    }
    connection = &init->connections[init->connection_count++];
    connection->id = id;
    connection->path[0] = connection->address[0] = connection->why[0] = '\0';
    if (failed) {
        pilotlight_copy(connection->why, sizeof connection->why, value, len);
    } else {
        pilotlight_copy(connection->path, sizeof connection->path, value, path_len);
        pilotlight_copy(connection->address, sizeof connection->address, space + 1, len - path_len - 1);
    }
}

/* `name` is what follows the prefix: a number, the name of a script, or "Conn-" and a number. */
static inline void pilotlight_add(struct pilotlight_init *init, int failed, const char *name, size_t name_len, const char *value, size_t len) {
    uint64_t id = 0;
    struct pilotlight_entry *entry;
    if (name_len > 5 && strncasecmp(name, "conn", 4) == 0) {
        pilotlight_add_connection(init, failed, name + 5, name_len - 5, value, len);
        return;
    }
    for (size_t at = 0; at < name_len; at++) {
        uint64_t digit = (uint64_t)(name[at] - '0');
        if (name[at] < '0' || name[at] > '9' || id > (UINT64_MAX - digit) / 10) {
            if (failed && init->why[0] == '\0') {
                pilotlight_copy(init->why, sizeof init->why, value, len);
            }
            return;
        }
        id = id * 10 + digit;
    }
    if (name_len == 0 || (!failed && len >= PILOTLIGHT_PATH_LEN)) {
        return;
    }
    /* Both, if one script has failed to send it and the other one has not. */
    entry = (struct pilotlight_entry *)pilotlight_find(init, id);
    if (entry == NULL) {
        if (init->count == PILOTLIGHT_MESSAGES_MAX) {
            return;
        }
        entry = &init->entries[init->count++];
        entry->id = id;
        entry->path[0] = entry->why[0] = '\0';
    }
    if (failed) {
        pilotlight_copy(entry->why, sizeof entry->why, value, len);
    } else {
        pilotlight_copy(entry->path, sizeof entry->path, value, len);
    }
}

/* A header line of the event, `Name: value`, with or without a line break. Other headers are ignored. */
static inline void pilotlight_init_header(struct pilotlight_init *init, const char *line, size_t len) {
    static const char *const prefixes[] = {"pilot-init-", "pilot-failed-init-"};
    const char *colon = (const char *)memchr(line, ':', len);
    if (colon == NULL) {
        return;
    }
    for (int failed = 0; failed < 2; failed++) {
        size_t prefix = strlen(prefixes[failed]), name = (size_t)(colon - line), from = name + 1;
        if (name <= prefix || strncasecmp(line, prefixes[failed], prefix) != 0) {
            continue;
        }
        while (from < len && (line[from] == ' ' || line[from] == '\t')) {
            from++;
        }
        while (len > from && (line[len - 1] == '\n' || line[len - 1] == '\r' || line[len - 1] == ' ')) {
            len--;
        }
        pilotlight_add(init, failed, line + prefix, name - prefix, line + from, len - from);
        return;
    }
}

/* For a program that runs once per invocation: clears, and reads the variables. */
static inline void pilotlight_init_environment(struct pilotlight_init *init) {
    extern char **environ;
    static const char *const prefixes[] = {"PILOT_INIT_", "PILOT_FAILED_INIT_"};
    pilotlight_init_clear(init);
    for (char **variable = environ; variable != NULL && *variable != NULL; variable++) {
        const char *equals = strchr(*variable, '=');
        for (int failed = 0; equals != NULL && failed < 2; failed++) {
            size_t prefix = strlen(prefixes[failed]);
            if (strncmp(*variable, prefixes[failed], prefix) == 0 && equals > *variable + prefix) {
                size_t name = (size_t)(equals - *variable) - prefix;
                pilotlight_add(init, failed, *variable + prefix, name, equals + 1, strlen(equals + 1));
            }
        }
    }
}

/* The path of a message, to be opened or given to another program. NULL: there is none. */
static inline const char *pilotlight_init_path(const struct pilotlight_init *init, uint64_t id) {
    const struct pilotlight_entry *entry = pilotlight_find(init, id);
    return entry == NULL || entry->path[0] == '\0' ? NULL : entry->path;
}

/* An id that follows from the arguments of a call, so that a script and a library name its result in the same way. FNV-1a of 64 bits, of each
 * argument's length and bytes. */
static inline uint64_t pilotlight_init_id_of(const char *const *arguments, size_t count) {
    uint64_t total = UINT64_C(0xcbf29ce484222325);
    for (size_t at = 0; at < count; at++) {
        uint64_t len = strlen(arguments[at]);
        for (size_t byte = 0; byte < 8; byte++) {
            total = (total ^ (len >> (8 * byte) & 255)) * UINT64_C(0x100000001b3);
        }
        for (size_t byte = 0; byte < len; byte++) {
            total = (total ^ (unsigned char)arguments[at][byte]) * UINT64_C(0x100000001b3);
        }
    }
    return total;
}

/* Why a message is not there. */
static inline const char *pilotlight_init_why(const struct pilotlight_init *init, uint64_t id) {
    const struct pilotlight_entry *entry = pilotlight_find(init, id);
    if (entry != NULL && entry->why[0] != '\0') {
        return entry->why;
    }
    if (init->why[0] != '\0') {
        return init->why;
    }
    return init->count > 0 ? "the initscript did not send it"
                           : "no initscript ran for this invocation, because it did not wait for a worker to start";
}

/* Maps a message, without a copy. Returns 0; or -1 and errno, which is ENOENT if there is none. */
static inline int pilotlight_init_recv_msg(const struct pilotlight_init *init, uint64_t id, struct pilotlight_msg *msg) {
    const char *path = pilotlight_init_path(init, id);
    struct stat stat;
    int file, error = 0;
    msg->bytes = NULL;
    msg->len = 0;
    if (path == NULL) {
        errno = ENOENT;
        return -1;
    }
    file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return -1;
    }
    if (fstat(file, &stat) != 0) {
        error = errno;
    } else if (stat.st_size > 0) {
        void *bytes = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_SHARED, file, 0);
        if (bytes == MAP_FAILED) {
            error = errno;
        } else {
            msg->bytes = bytes;
            msg->len = (size_t)stat.st_size;
        }
    }
    close(file);
    errno = error;
    return error == 0 ? 0 : -1;
}

/* The connection to `address` that the script handed over as `id`: a connected stream socket, once. It is the program's, to be closed by it, and
 * stays open after the invocation. Returns the descriptor; or -1 and errno, which is ENOENT if there is none and EINVAL if it leads
 * elsewhere. */
static inline int pilotlight_init_get_conn(struct pilotlight_init *init, uint64_t id, const char *address) {
    struct pilotlight_connection *connection = pilotlight_find_connection(init, id);
    struct sockaddr_un place;
    int made, error;
    if (connection == NULL || connection->path[0] == '\0') {
        errno = ENOENT;
        return -1;
    }
    if (strcmp(connection->address, address) != 0) {
        errno = EINVAL;
        return -1;
    }
    made = socket(AF_UNIX, SOCK_STREAM, 0);
    if (made < 0) {
        return -1;
    }
    memset(&place, 0, sizeof place);
    place.sun_family = AF_UNIX;
    pilotlight_copy(place.sun_path, sizeof place.sun_path, connection->path, strlen(connection->path));
    if (fcntl(made, F_SETFD, FD_CLOEXEC) != 0 || connect(made, (const struct sockaddr *)&place, sizeof place) != 0) {
        error = errno;
        close(made);
        errno = error;
        return -1;
    }
    connection->path[0] = '\0';
    return made;
}

/* Why a connection is not there. */
static inline const char *pilotlight_init_why_conn(struct pilotlight_init *init, uint64_t id) {
    const struct pilotlight_connection *connection = pilotlight_find_connection(init, id);
    if (connection != NULL && connection->why[0] != '\0') {
        return connection->why;
    }
    return init->why[0] != '\0' ? init->why : "the initscript did not hand it over, or it was taken before";
}

/* Ends the mapping. */
static inline void pilotlight_init_release(struct pilotlight_msg *msg) {
    if (msg->bytes != NULL) {
        munmap((void *)msg->bytes, msg->len);
        msg->bytes = NULL;
        msg->len = 0;
    }
}

#endif
