/*
 * A shard of a vector database (the paper's vecdb). Its state is one block of memory without addresses: a header, the ids, and the vectors. So
 * what an initscript has fetched from a cache is used where it lies. The cache is the service of cached.c, which has the shard as a value.
 *
 * An event {"seed": N} asks for the three vectors that are nearest (cosine) to the one made of the seed. With the variable COPY, each vector
 * becomes an allocation of its own.
 */
#include "service.h"

#include <math.h>

enum { NEAREST = 3 };

static const char MAGIC[8] = "VECTORS1";

/* All numbers little-endian. Then: `count` ids of 64 bits, and as many vectors of `dims` float32. */
struct head {
    char magic[8];
    uint32_t count, dims;
};

static struct {
    uint32_t count, dims;
    const uint64_t *ids;
    const float *vectors;
    float **copied;
} index_of;

static void use(const struct state *state) {
    struct head head;
    if (state->len < sizeof head) fail("the shard has %zu bytes", state->len);
    memcpy(&head, state->bytes, sizeof head);
    uint64_t len = sizeof head + (uint64_t)head.count * 8 + (uint64_t)head.count * head.dims * 4;
    if (memcmp(head.magic, MAGIC, sizeof MAGIC) != 0 || head.count == 0 || len != state->len) fail("this is no shard");
    index_of.count = head.count;
    index_of.dims = head.dims;
    index_of.ids = (const uint64_t *)(state->bytes + sizeof head);
    index_of.vectors = (const float *)(index_of.ids + head.count);
}

static void take_apart(void) {
    size_t len = index_of.dims * sizeof(float);
    index_of.copied = malloc(index_of.count * sizeof *index_of.copied);
    if (index_of.copied == NULL) fail("there is no memory for the table");
    for (uint32_t at = 0; at < index_of.count; at++) {
        index_of.copied[at] = malloc(len);
        if (index_of.copied[at] == NULL) fail("there is no memory for a vector");
        memcpy(index_of.copied[at], index_of.vectors + (size_t)at * index_of.dims, len);
    }
}

static const float *vector(uint32_t at) {
    return index_of.copied != NULL ? index_of.copied[at] : index_of.vectors + (size_t)at * index_of.dims;
}

/* The nearest first. */
static void search(uint32_t seed, uint64_t found[NEAREST]) {
    float *query = malloc(index_of.dims * sizeof *query), best[NEAREST];
    if (query == NULL) fail("there is no memory for a query");
    for (uint32_t at = 0; at < index_of.dims; at++) {
        seed = seed * 1664525u + 1013904223u; /* Numerical Recipes */
        query[at] = (float)(seed >> 8) / (float)(1 << 24) - 0.5f;
    }
    for (int place = 0; place < NEAREST; place++) best[place] = -2, found[place] = 0;
    for (uint32_t at = 0; at < index_of.count; at++) {
        const float *other = vector(at);
        float product = 0, norm = 0;
        for (uint32_t dim = 0; dim < index_of.dims; dim++) product += query[dim] * other[dim], norm += other[dim] * other[dim];
        float near = norm > 0 ? product / sqrtf(norm) : -2;
        uint64_t id = index_of.ids[at];
        for (int place = 0; place < NEAREST; place++) {
            if (near <= best[place]) continue;
            float pushed = best[place];
            uint64_t pushed_id = found[place];
            best[place] = near, found[place] = id;
            near = pushed, id = pushed_id;
        }
    }
    free(query);
}

static void handle(struct pilotlight_init *init, const char *event, char *answer, size_t room) {
    struct state state = {0};
    double loaded = 0, began;
    uint64_t found[NEAREST];
    if (index_of.ids == NULL) {
        state = taken(init, "/shard-0");
        began = now_us();
        use(&state);
        if (copies()) take_apart();
        loaded = now_us() - began;
    }
    began = now_us();
    search((uint32_t)wanted(event, "seed"), found);
    snprintf(answer, room,
             "{\"result\": [%llu, %llu, %llu], \"by\": \"%s\", \"measurement\": {\"download_time\": %.1f, \"load_time\": %.1f, "
             "\"compute_time\": %.1f, \"download_size\": %zu}}",
             (unsigned long long)found[0], (unsigned long long)found[1], (unsigned long long)found[2],
             state.by_script ? "script" : "service", state.download_us, loaded, now_us() - began, state.len);
}

int main(void) {
    serve(handle);
    return 0;
}
