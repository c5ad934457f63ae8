/*
 * A shard of a key-value cache (the paper's cached). Its state is one block of memory without addresses: a header, a table of slots, and the
 * entries. So what an initscript has fetched from a peer is used where it lies.
 *
 *     cached                 a worker: the state is that of PEER, and an event {"entry": N} asks for the value of `key-N`
 *     cached PORT FILE       a peer, which serves its block to new workers (GET /shard), and values (GET /KEY)
 *
 * With the variable COPY, the block is taken apart, as by a cache whose entries are allocated one by one.
 */
#include "service.h"

#include <signal.h>

static const char MAGIC[8] = "CACHED01";

/* All numbers little-endian. `slots` is a power of 2. Then: `slots` offsets of entries in the block, 0 for none; the entries. */
struct head {
    char magic[8];
    uint32_t slots, entries;
};

struct entry {
    uint32_t key_len, value_len;
    unsigned char bytes[];
};

static uint32_t hash(const void *key, size_t len) {
    uint32_t sum = 2166136261u; /* FNV-1a */
    for (size_t at = 0; at < len; at++) sum = (sum ^ ((const unsigned char *)key)[at]) * 16777619u;
    return sum;
}

/* The service's own form, with COPY. */
struct own {
    const unsigned char *block;
    size_t len;
    struct entry **copied;
    uint32_t slots;
} cache;

/* An entry of the block, or NULL if it is not inside of it. */
static const struct entry *entry_at(const struct own *cache, uint64_t offset) {
    if (offset < sizeof(struct head) || offset > cache->len - sizeof(struct entry)) return NULL;
    const struct entry *entry = (const struct entry *)(cache->block + offset);
    uint64_t end = offset + sizeof *entry + (uint64_t)entry->key_len + entry->value_len;
    return end <= cache->len ? entry : NULL;
}

static const struct entry *slot(const struct own *cache, uint32_t at) {
    if (cache->copied != NULL) return cache->copied[at];
    uint64_t offset = ((const uint64_t *)(cache->block + sizeof(struct head)))[at];
    return offset == 0 ? NULL : entry_at(cache, offset);
}

static const struct entry *look_up(const struct own *cache, const char *key) {
    size_t len = strlen(key);
    uint32_t at = hash(key, len) & (cache->slots - 1);
    for (uint32_t tried = 0; tried < cache->slots; tried++, at = (at + 1) & (cache->slots - 1)) {
        const struct entry *entry = slot(cache, at);
        if (entry == NULL) return NULL;
        if (entry->key_len == len && memcmp(entry->bytes, key, len) == 0) return entry;
    }
    return NULL;
}

static void use(const unsigned char *block, size_t len) {
    struct head head;
    if (len < sizeof head) fail("the shard has %zu bytes", len);
    memcpy(&head, block, sizeof head);
    if (memcmp(head.magic, MAGIC, sizeof MAGIC) != 0 || head.slots == 0 || (head.slots & (head.slots - 1)) != 0 ||
        (len - sizeof head) / 8 < head.slots)
        fail("this is no shard");
    cache = (struct own){.block = block, .len = len, .slots = head.slots};
}

/* Each entry becomes an allocation of its own. */
static void take_apart(void) {
    struct entry **copied = calloc(cache.slots, sizeof *copied);
    if (copied == NULL) fail("there is no memory for the table");
    for (uint32_t at = 0; at < cache.slots; at++) {
        const struct entry *entry = slot(&cache, at);
        if (entry == NULL) continue;
        size_t len = sizeof *entry + entry->key_len + entry->value_len;
        copied[at] = malloc(len);
        if (copied[at] == NULL) fail("there is no memory for an entry");
        memcpy(copied[at], entry, len);
    }
    cache.copied = copied;
}

static void handle(struct pilotlight_init *init, const char *event, char *answer, size_t room) {
    struct state state = {0};
    double loaded = 0;
    if (cache.block == NULL) {
        state = taken(init, "/shard");
        double began = now_us();
        use(state.bytes, state.len);
        if (copies()) take_apart();
        loaded = now_us() - began;
    }
    char key[32];
    snprintf(key, sizeof key, "key-%lu", wanted(event, "entry"));
    const struct entry *entry = look_up(&cache, key);
    uint32_t sum = entry == NULL ? 0 : hash(entry->bytes + entry->key_len, entry->value_len);
    snprintf(answer, room, "{\"result\": %u, \"by\": \"%s\", \"measurement\": {\"download_time\": %.1f, \"load_time\": %.1f, \"download_size\": %zu}}",
             sum, state.by_script ? "script" : "service", state.download_us, loaded, state.len);
}

static void sent(int line, const void *bytes, size_t len) {
    while (len > 0) {
        ssize_t part = write(line, bytes, len);
        if (part <= 0) return;
        bytes = (const char *)bytes + part;
        len -= (size_t)part;
    }
}

/* One request after another of one connection. */
static void answer_peer(int line) {
    char request[1024], key[512], head[128];
    FILE *in = fdopen(line, "r");
    while (in != NULL && fgets(request, sizeof request, in) != NULL) {
        char rest[sizeof request];
        while (fgets(rest, sizeof rest, in) != NULL && rest[0] != '\r') {
        }
        const void *body = NULL;
        size_t len = 0;
        const struct entry *entry;
        if (sscanf(request, "GET /%511s ", key) != 1) break;
        if (strcmp(key, "shard") == 0) {
            body = cache.block, len = cache.len;
        } else if ((entry = look_up(&cache, key)) != NULL) {
            body = entry->bytes + entry->key_len, len = entry->value_len;
        }
        const char *status = body == NULL ? "404 Not Found" : "200 OK";
        int head_len = snprintf(head, sizeof head, "HTTP/1.1 %s\r\nContent-Length: %zu\r\n\r\n", status, len);
        sent(line, head, (size_t)head_len);
        sent(line, body, len);
    }
    if (in != NULL) fclose(in);
}

static int peer(const char *port, const char *path) {
    struct stat stat;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port)), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int file = open(path, O_RDONLY), one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    if (file < 0 || fstat(file, &stat) != 0) fail("%s cannot be read", path);
    void *block = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_SHARED, file, 0);
    if (block == MAP_FAILED) fail("%s cannot be mapped", path);
    use(block, (size_t)stat.st_size);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_IGN);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 64) != 0) fail("port %s is in use", port);
    for (;;) {
        int line = accept(listener, NULL, NULL);
        if (line < 0) continue;
        if (fork() == 0) {
            setsockopt(line, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            answer_peer(line);
            _exit(0);
        }
        close(line);
    }
}

int main(int count, char **words) {
    if (count == 3) return peer(words[1], words[2]);
    serve(handle);
    return 0;
}
