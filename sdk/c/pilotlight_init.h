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
 *
 * With `during = "invocation"`, the script goes on beside the program. `Pilot-Init-Script` (`PILOT_INIT_SCRIPT`) is then a path to connect to.
 * recv_msg and get_conn connect when they are first called, and wait for what is not there yet; pilotlight_init_send_msg sends a message to
 * the script. Call pilotlight_init_end before the event is answered, and not from two threads at once. The program reads, for each thing
 * that the script sends, a length (32 bits, little-endian) and a JSON object of that length.
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
/* Bytes of a message to the script, at most. */
#define PILOTLIGHT_SENT_LEN_MAX (1u << 20)

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
    char script[PILOTLIGHT_PATH_LEN]; /* where to connect to a script that goes on; empty: it does not */
    int socket; /* the connection; -1: none yet, or it is over */
    int is_over; /* nothing comes any more */
};

/* A mapped message. */
struct pilotlight_msg {
    const void *bytes; /* read-only; NULL if len is 0 */
    size_t len;
};

/* Before the headers of each event. */
static inline void pilotlight_init_clear(struct pilotlight_init *init) {
    init->count = init->connection_count = 0;
    init->why[0] = init->script[0] = '\0';
    init->socket = -1;
    init->is_over = 0;
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
    if (!failed && name_len == 6 && strncasecmp(name, "script", 6) == 0) {
        if (len < PILOTLIGHT_PATH_LEN) {
            pilotlight_copy(init->script, sizeof init->script, value, len);
        }
        return;
    }
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

/* A connected stream socket, or -1 and errno. */
static inline int pilotlight_connect(const char *path) {
    struct sockaddr_un place;
    int made = socket(AF_UNIX, SOCK_STREAM, 0), error;
    if (made < 0) {
        return -1;
    }
    memset(&place, 0, sizeof place);
    place.sun_family = AF_UNIX;
    pilotlight_copy(place.sun_path, sizeof place.sun_path, path, strlen(path));
    if (fcntl(made, F_SETFD, FD_CLOEXEC) != 0 || connect(made, (const struct sockaddr *)&place, sizeof place) != 0) {
        error = errno;
        close(made);
        errno = error;
        return -1;
    }
    return made;
}

/* What a script that goes on has sent: a JSON object, of which at most `left` bytes are still to be read from the socket. */
struct pilotlight_note {
    int socket;
    size_t left, at, have;
    unsigned char bytes[512];
    /* With room for one more byte than is taken, so that what was cut is not taken. */
    char op[16], id[24], path[PILOTLIGHT_PATH_LEN + 1], address[PILOTLIGHT_ADDRESS_LEN + 1], problem[PILOTLIGHT_WHY_LEN];
};

/* The next byte, or -1: the object is over, or the socket is. */
static inline int pilotlight_next(struct pilotlight_note *note) {
    if (note->at == note->have) {
        size_t room = note->left < sizeof note->bytes ? note->left : sizeof note->bytes;
        ssize_t got;
        do {
            got = room == 0 ? 0 : read(note->socket, note->bytes, room);
        } while (got < 0 && errno == EINTR);
        if (got <= 0) {
            return -1;
        }
        note->left -= (size_t)got;
        note->have = (size_t)got;
        note->at = 0;
    }
    return note->bytes[note->at++];
}

/* The rest of a string, behind its quotation mark, as far as there is room. Returns 0 at its end, -1 if it has none. */
static inline int pilotlight_string(struct pilotlight_note *note, char *into, size_t room) {
    size_t len = 0;
    for (;;) {
        int byte = pilotlight_next(note);
        if (byte < 0 || byte == '"') {
            into[len] = '\0';
            return byte < 0 ? -1 : 0;
        }
        if (byte == '\\') {
            byte = pilotlight_next(note);
            if (byte == 'u') {
                /* A control character: others are not escaped. */
                for (int digit = 0; digit < 4; digit++) {
                    pilotlight_next(note);
                }
                byte = '?';
            } else if (byte == 'n' || byte == 'r' || byte == 't' || byte == 'b' || byte == 'f') {
                byte = ' ';
            }
        }
        if (byte >= 0 && len + 1 < room) {
            into[len++] = (char)byte;
        }
    }
}

/* Reads the object's own strings, and skips what is nested in it. */
static inline int pilotlight_read(struct pilotlight_note *note) {
    char key[16], ignored[1];
    int depth = 0, is_key = 0, byte;
    note->op[0] = note->id[0] = note->path[0] = note->address[0] = note->problem[0] = key[0] = '\0';
    while ((byte = pilotlight_next(note)) >= 0) {
        if (byte == '{' || byte == '[') {
            depth++;
            is_key = depth == 1;
        } else if (byte == '}' || byte == ']') {
            depth--;
        } else if (byte == ',') {
            is_key = depth == 1;
        } else if (byte == ':') {
            is_key = 0;
        } else if (byte == '"') {
            char *into = ignored;
            size_t room = sizeof ignored;
            if (depth == 1 && is_key) {
                into = key, room = sizeof key;
            } else if (depth == 1 && strcmp(key, "op") == 0) {
                into = note->op, room = sizeof note->op;
            } else if (depth == 1 && strcmp(key, "id") == 0) {
                into = note->id, room = sizeof note->id;
            } else if (depth == 1 && strcmp(key, "path") == 0) {
                into = note->path, room = sizeof note->path;
            } else if (depth == 1 && strcmp(key, "address") == 0) {
                into = note->address, room = sizeof note->address;
            } else if (depth == 1 && strcmp(key, "problem") == 0) {
                into = note->problem, room = sizeof note->problem;
            }
            if (pilotlight_string(note, into, room) != 0) {
                return -1;
            }
        }
    }
    return depth == 0 && note->op[0] != '\0' && note->left == 0 ? 0 : -1;
}

/* Waits for the next thing that the script sends. Returns 0; or -1, when nothing comes any more. */
static inline int pilotlight_more(struct pilotlight_init *init) {
    struct pilotlight_note note;
    unsigned char len[4];
    int failed;
    if (init->script[0] == '\0' || init->is_over) {
        return -1;
    }
    if (init->socket < 0 && (init->socket = pilotlight_connect(init->script)) < 0) {
        goto broken;
    }
    note.socket = init->socket;
    note.left = sizeof len;
    note.at = note.have = 0;
    for (size_t at = 0; at < sizeof len; at++) {
        int byte = pilotlight_next(&note);
        if (byte < 0) {
            goto broken;
        }
        len[at] = (unsigned char)byte;
    }
    note.left = (size_t)len[0] | (size_t)len[1] << 8 | (size_t)len[2] << 16 | (size_t)len[3] << 24;
    if (pilotlight_read(&note) != 0) {
        goto broken;
    }
    failed = note.path[0] == '\0';
    if (strcmp(note.op, "end") == 0) {
        pilotlight_copy(init->why, sizeof init->why, note.problem, strlen(note.problem));
        init->is_over = 1;
    } else if (strcmp(note.op, "message") == 0) {
        const char *value = failed ? note.problem : note.path;
        pilotlight_add(init, failed, note.id, strlen(note.id), value, strlen(value));
    } else if (strcmp(note.op, "connection") == 0) {
        char value[PILOTLIGHT_PATH_LEN + PILOTLIGHT_ADDRESS_LEN + PILOTLIGHT_WHY_LEN + 2];
        if (failed) {
            pilotlight_copy(value, sizeof value, note.problem, strlen(note.problem));
        } else {
            snprintf(value, sizeof value, "%s %s", note.path, note.address);
        }
        pilotlight_add_connection(init, failed, note.id, strlen(note.id), value, strlen(value));
    }
    return 0;
broken:
    pilotlight_copy(init->why, sizeof init->why, "the way to the initscript broke off", 35);
    init->is_over = 1;
    return -1;
}

/* Sends a message to a script that goes on (`recv_msg` there), while it runs. Returns 0; or -1 and errno: ENOENT if no script goes on, EPIPE if it has
 * ended, EMSGSIZE if the message is longer than 1 MiB. */
static inline int pilotlight_init_send_msg(struct pilotlight_init *init, uint64_t id, const void *bytes, size_t len) {
    unsigned char head[12];
    if (init->script[0] == '\0') {
        errno = ENOENT;
        return -1;
    }
    if (len > PILOTLIGHT_SENT_LEN_MAX) {
        errno = EMSGSIZE;
        return -1;
    }
    if (init->socket < 0 && !init->is_over && (init->socket = pilotlight_connect(init->script)) < 0) {
        return -1;
    }
    if (init->socket < 0) {
        errno = EPIPE;
        return -1;
    }
    for (int at = 0; at < 8; at++) {
        head[at] = (unsigned char)(id >> (8 * at));
    }
    for (int at = 0; at < 4; at++) {
        head[8 + at] = (unsigned char)(len >> (8 * at));
    }
    for (size_t done = 0; done < sizeof head + len;) {
        const unsigned char *from = done < sizeof head ? head + done : (const unsigned char *)bytes + (done - sizeof head);
        size_t rest = done < sizeof head ? sizeof head - done : sizeof head + len - done;
        ssize_t sent = send(init->socket, from, rest, MSG_NOSIGNAL);
        if (sent >= 0) {
            done += (size_t)sent;
        } else if (errno != EINTR) {
            return -1;
        }
    }
    return 0;
}

/* Before an event is answered: closes the connection to a script that goes on. The script ends with the invocation. */
static inline void pilotlight_init_end(struct pilotlight_init *init) {
    if (init->socket >= 0) {
        close(init->socket);
    }
    init->socket = -1;
    init->is_over = 1;
}

/* The path of a message, to be opened or given to another program. Of a script that goes on, it waits for it. NULL: there is none. */
static inline const char *pilotlight_init_path(struct pilotlight_init *init, uint64_t id) {
    const struct pilotlight_entry *entry;
    while ((entry = pilotlight_find(init, id)) == NULL && pilotlight_more(init) == 0) {
    }
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
    return init->count > 0 || init->script[0] != '\0' ? "the initscript did not send it"
                           : "no initscript ran for this invocation, because it did not wait for a worker to start";
}

/* Maps a message, without a copy. Of a script that goes on, it waits for it. Returns 0; or -1 and errno, which is ENOENT if there is none. */
static inline int pilotlight_init_recv_msg(struct pilotlight_init *init, uint64_t id, struct pilotlight_msg *msg) {
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
 * stays open after the invocation. Of a script that goes on, it waits for it. Returns the descriptor; or -1 and errno, which is ENOENT if
 * there is none and EINVAL if it leads elsewhere. */
static inline int pilotlight_init_get_conn(struct pilotlight_init *init, uint64_t id, const char *address) {
    struct pilotlight_connection *connection;
    int made;
    while ((connection = pilotlight_find_connection(init, id)) == NULL && pilotlight_more(init) == 0) {
    }
    if (connection == NULL || connection->path[0] == '\0') {
        errno = ENOENT;
        return -1;
    }
    if (strcmp(connection->address, address) != 0) {
        errno = EINVAL;
        return -1;
    }
    made = pilotlight_connect(connection->path);
    if (made < 0) {
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
