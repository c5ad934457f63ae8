/* Asks for events by the Lambda Runtime API, and answers with the checksums of the messages 0 to 2: a list of numbers, or why not. With an
 * ADDRESS, it answers with what it is told over connection 0, what a second connection 0 is, and why there is no connection 2. With TALKS, it talks
 * with a script that goes on: it waits for message 0, sends 5, waits for 6, and answers with both, why there is no 99, and how a message after the
 * script's end fails. */
#define _POSIX_C_SOURCE 200809L
#include <netdb.h>
#include <sys/socket.h>

#include "pilotlight_init.h"

enum { ROOM = 65536 };

/* The daemon: one stream for each direction. */
struct daemon {
    FILE *in, *out;
};

static struct daemon dial(void) {
    char host[256];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    snprintf(host, sizeof host, "%s", getenv("AWS_LAMBDA_RUNTIME_API"));
    char *port = strrchr(host, ':');
    *port++ = '\0';
    if (getaddrinfo(host, port, &hints, &found) != 0) exit(2);
    int line = socket(found->ai_family, found->ai_socktype, 0);
    if (connect(line, found->ai_addr, found->ai_addrlen) != 0) exit(3);
    freeaddrinfo(found);
    return (struct daemon){fdopen(line, "r"), fdopen(dup(line), "w")};
}

/* Reads a response up to its end. The head goes to `init`, and the request id to `id`. */
static void answer(FILE *in, struct pilotlight_init *init, char *id, size_t room) {
    static const char ID[] = "lambda-runtime-aws-request-id:", LENGTH[] = "content-length:";
    char line[4096];
    long length = 0;
    while (fgets(line, sizeof line, in) != NULL && line[0] != '\r') {
        pilotlight_init_header(init, line, strlen(line));
        if (strncasecmp(line, ID, strlen(ID)) == 0) snprintf(id, room, "%.36s", line + strlen(ID) + 1);
        if (strncasecmp(line, LENGTH, strlen(LENGTH)) == 0) length = strtol(line + strlen(LENGTH), NULL, 10);
    }
    while (length-- > 0 && fgetc(in) != EOF) {
    }
    if (feof(in)) exit(0);
}

#ifdef ADDRESS
static size_t ask(struct pilotlight_init *init, char *body) {
    char told[6] = "";
    size_t got = 0;
    ssize_t read_now = 1;
    int line = pilotlight_init_get_conn(init, 0, ADDRESS);
    if (line < 0 || write(line, "hello", 5) != 5) {
        return (size_t)snprintf(body, ROOM, "[\"%d %s\"]", line, pilotlight_init_why_conn(init, 0));
    }
    while (got < 5 && (read_now = read(line, told + got, 5 - got)) > 0) got += (size_t)read_now;
    close(line);
    int again = pilotlight_init_get_conn(init, 0, ADDRESS);
    int elsewhere = pilotlight_init_get_conn(init, 1, "tcp://127.0.0.1:2");
    const char *second = again < 0 && elsewhere < 0 && errno == EINVAL ? "taken" : "not taken";
    /* Of a script that goes on, it waits until it is known that there is none. */
    int none = pilotlight_init_get_conn(init, 2, ADDRESS);
    if (none >= 0) close(none);
    return (size_t)snprintf(body, ROOM, "[\"%s\",\"%s\",\"%s\"]", told, second, pilotlight_init_why_conn(init, 2));
}
#else
#ifdef TALKS
static size_t text(struct pilotlight_init *init, uint64_t id, char *body, size_t room) {
    struct pilotlight_msg msg;
    size_t len;
    if (pilotlight_init_recv_msg(init, id, &msg) != 0) {
        return (size_t)snprintf(body, room, "\"%s\",", pilotlight_init_why(init, id));
    }
    len = (size_t)snprintf(body, room, "\"%.*s\",", (int)msg.len, (const char *)msg.bytes);
    pilotlight_init_release(&msg);
    return len;
}

static size_t talk(struct pilotlight_init *init, char *body) {
    static char large[PILOTLIGHT_SENT_LEN_MAX + 1];
    int too_large = pilotlight_init_send_msg(init, 4, large, sizeof large) != 0 ? errno : 0, late;
    size_t len = 1;
    body[0] = '[';
    len += text(init, 0, body + len, ROOM - len);
    len += (size_t)snprintf(body + len, ROOM - len, "%d,", pilotlight_init_send_msg(init, 5, "hello", 5));
    len += text(init, 6, body + len, ROOM - len);
    len += text(init, 99, body + len, ROOM - len);
    late = pilotlight_init_send_msg(init, 7, "late", 4) != 0 ? errno : 0;
    pilotlight_init_end(init);
    return len + (size_t)snprintf(body + len, ROOM - len, "\"%s\",\"%s\"]", strerror(too_large), strerror(late));
}
#else
static uint32_t checksum(const struct pilotlight_msg *msg) {
    uint32_t sum = 2166136261u; /* FNV-1a */
    for (size_t at = 0; at < msg->len; at++) sum = (sum ^ ((const unsigned char *)msg->bytes)[at]) * 16777619u;
    return sum;
}
#endif
#endif

int main(void) {
    static struct pilotlight_init init;
    static char body[ROOM];
    char id[64] = "";
    struct daemon daemon = dial();
    for (;;) {
        size_t len = 0;
        pilotlight_init_clear(&init);
        fprintf(daemon.out, "GET /2018-06-01/runtime/invocation/next HTTP/1.1\r\nHost: x\r\n\r\n");
        fflush(daemon.out);
        answer(daemon.in, &init, id, sizeof id);
#ifdef ADDRESS
        len = ask(&init, body);
#elif defined TALKS
        len = talk(&init, body);
#else
        for (uint64_t number = 0; number < 3; number++) {
            struct pilotlight_msg msg;
            char before = number == 0 ? '[' : ',';
            if (pilotlight_init_recv_msg(&init, number, &msg) == 0) {
                len += (size_t)snprintf(body + len, ROOM - len, "%c[%zu,%u]", before, msg.len, checksum(&msg));
                pilotlight_init_release(&msg);
            } else {
                len += (size_t)snprintf(body + len, ROOM - len, "%c\"%s\"", before, pilotlight_init_why(&init, number));
            }
        }
        len += (size_t)snprintf(body + len, ROOM - len, "]");
#endif
        fprintf(daemon.out, "POST /2018-06-01/runtime/invocation/%s/response HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s", id, len, body);
        fflush(daemon.out);
        answer(daemon.in, &init, id, 0);
    }
}
