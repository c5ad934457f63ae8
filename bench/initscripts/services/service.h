/*
 * What both services share: a runtime behind the Lambda Runtime API, and where the state comes from: a message of an initscript, mapped or
 * copied, or a peer that is asked over HTTP. C11 and POSIX. A failure of the surroundings ends the program, and says why.
 */
#ifndef SERVICE_H
#define SERVICE_H
#define _POSIX_C_SOURCE 200809L
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <time.h>

#include "pilotlight_init.h"

/* The state, and how it was taken. */
struct state {
    const unsigned char *bytes;
    size_t len;
    int by_script;
    double download_us; /* without a script */
};

static _Noreturn void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(2);
}

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* `HOST:PORT`. */
static int dial(const char *address) {
    char host[256];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    int one = 1;
    if (address == NULL || strlen(address) >= sizeof host) fail("there is no address");
    strcpy(host, address);
    char *port = strrchr(host, ':');
    if (port == NULL) fail("%s has no port", address);
    *port++ = '\0';
    if (getaddrinfo(host, port, &hints, &found) != 0) fail("%s is not known", address);
    int line = socket(found->ai_family, found->ai_socktype, 0);
    if (line < 0 || connect(line, found->ai_addr, found->ai_addrlen) != 0) fail("%s does not answer", address);
    setsockopt(line, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    freeaddrinfo(found);
    return line;
}

/* Reads a response of HTTP: its head goes to `init` and `id`, unless they are NULL. Its body is allocated, with a zero after it. */
static char *response(FILE *in, struct pilotlight_init *init, char id[64], size_t *len) {
    static const char ID[] = "lambda-runtime-aws-request-id:", LENGTH[] = "content-length:";
    char line[4096];
    *len = 0;
    while (fgets(line, sizeof line, in) != NULL && line[0] != '\r') {
        if (init != NULL) pilotlight_init_header(init, line, strlen(line));
        if (id != NULL && strncasecmp(line, ID, strlen(ID)) == 0) snprintf(id, 64, "%.36s", line + strlen(ID) + 1);
        if (strncasecmp(line, LENGTH, strlen(LENGTH)) == 0) *len = strtoul(line + strlen(LENGTH), NULL, 10);
    }
    if (feof(in)) exit(0);
    char *body = malloc(*len + 1);
    if (body == NULL || fread(body, 1, *len, in) != *len) fail("a response of %zu bytes breaks off", *len);
    body[*len] = '\0';
    return body;
}

/* Asks the peer for its state, as a service does that has no initscript. */
static struct state from_peer(const char *path) {
    struct state state = {0};
    double began = now_us();
    int line = dial(getenv("PEER"));
    FILE *in = fdopen(line, "r");
    char request[512];
    int len = snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: peer\r\n\r\n", path);
    if (in == NULL || len >= (int)sizeof request || write(line, request, (size_t)len) != len) fail("the peer cannot be asked");
    state.bytes = (const unsigned char *)response(in, NULL, NULL, &state.len);
    fclose(in);
    state.download_us = now_us() - began;
    return state;
}

/* Message 0, mapped; otherwise what the peer has. */
static struct state taken(struct pilotlight_init *init, const char *path) {
    struct pilotlight_msg msg;
    if (pilotlight_init_recv_msg(init, 0, &msg) != 0) return from_peer(path);
    return (struct state){.bytes = msg.bytes, .len = msg.len, .by_script = 1};
}

/* A whole number of the event, by its key. */
static unsigned long wanted(const char *event, const char *key) {
    const char *found = strstr(event, key);
    if (found == NULL || (found = strchr(found, ':')) == NULL) fail("the event has no %s", key);
    return strtoul(found + 1, NULL, 10);
}

/* Whether the state is copied into structures of the service's own, although it is mapped. */
static int copies(void) { return getenv("COPY") != NULL; }

/* Serves events until the daemon closes the connection. */
static void serve(void (*handle)(struct pilotlight_init *init, const char *event, char *answer, size_t room)) {
    static struct pilotlight_init init;
    static char answer[4096], request[8192];
    int line = dial(getenv("AWS_LAMBDA_RUNTIME_API"));
    FILE *in = fdopen(line, "r");
    char id[64] = "";
    for (;;) {
        size_t len;
        int sent = snprintf(request, sizeof request, "GET /2018-06-01/runtime/invocation/next HTTP/1.1\r\nHost: x\r\n\r\n");
        if (write(line, request, (size_t)sent) != sent) return;
        pilotlight_init_clear(&init);
        char *event = response(in, &init, id, &len);
        handle(&init, event, answer, sizeof answer);
        free(event);
        sent = snprintf(request, sizeof request, "POST /2018-06-01/runtime/invocation/%s/response HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s",
                        id, strlen(answer), answer);
        if (write(line, request, (size_t)sent) != sent) return;
        free(response(in, NULL, NULL, &len));
    }
}

#endif
