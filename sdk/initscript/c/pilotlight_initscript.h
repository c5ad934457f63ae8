/*
 * The functions that an initscript can call, for programs in C (docs/initscripts.md). No library is needed:
 *
 *     clang --target=wasm32 -Os -nostdlib -Wl,--no-entry -Wl,--export=run -Wl,-z,stack-size=65536 -Wl,--strip-all -o init.wasm init.c
 *     zig cc --target=wasm32-freestanding -Os -nostdlib -Wl,--no-entry -Wl,--export=run -Wl,-z,stack-size=65536 -Wl,--strip-all -o init.wasm init.c
 *
 * The program has a function `run`. A result below 0 is a code.
 */
#ifndef PILOTLIGHT_INITSCRIPT_H
#define PILOTLIGHT_INITSCRIPT_H

#include <stddef.h>
#include <stdint.h>

#define PILOTLIGHT_HOST(name) __attribute__((import_module("pilotlight_v1"), import_name(#name))) name
#define PILOTLIGHT_RUN __attribute__((export_name("run"))) void run(void)

enum pilotlight_code {
    PILOTLIGHT_REFUSED = -1,   /* `allow` or `during` does not permit it */
    PILOTLIGHT_DUPLICATE = -2, /* the id was used before */
    PILOTLIGHT_UNKNOWN = -3,   /* there is no such connection, request, reply or value */
    PILOTLIGHT_LIMIT = -4,     /* more than a script may have */
    PILOTLIGHT_INVALID = -5,   /* the text cannot be used */
    PILOTLIGHT_FAILED = -6     /* the request, or the memory for a message, failed; the function cannot send any more */
};

int32_t PILOTLIGHT_HOST(connect)(const char *at, size_t len);
int32_t PILOTLIGHT_HOST(send_rpc)(int32_t connection, int64_t id, const void *at, size_t len);
int32_t PILOTLIGHT_HOST(recv_rpc_reply)(int32_t connection, int64_t id);
int64_t PILOTLIGHT_HOST(reply_len)(int32_t reply);
int32_t PILOTLIGHT_HOST(reply_status)(int32_t reply);
int32_t PILOTLIGHT_HOST(reply_read)(int32_t reply, int64_t offset, void *at, size_t len);
int32_t PILOTLIGHT_HOST(send_msg)(int64_t id, const void *at, size_t len);
int32_t PILOTLIGHT_HOST(send_reply)(int64_t message, int32_t connection, int64_t id);
int32_t PILOTLIGHT_HOST(transfer_conn)(int64_t id, const char *at, size_t len, int32_t connection);
int32_t PILOTLIGHT_HOST(recv_msg)(int64_t id, uint32_t offset, void *at, size_t len);
_Noreturn void PILOTLIGHT_HOST(exit)(int32_t status);
int32_t PILOTLIGHT_HOST(event_read)(uint32_t offset, void *at, size_t len);
int32_t PILOTLIGHT_HOST(event_value)(const char *path, size_t path_len, char *at, size_t len);
int32_t PILOTLIGHT_HOST(reply_value)(int32_t reply, const char *path, size_t path_len, char *at, size_t len);
int32_t PILOTLIGHT_HOST(json_value)(const char *json, size_t json_len, const char *path, size_t path_len, char *at, size_t len);
int32_t PILOTLIGHT_HOST(input_read)(uint32_t offset, void *at, size_t len);
int32_t PILOTLIGHT_HOST(error_read)(char *at, size_t len);
void PILOTLIGHT_HOST(log)(const char *at, size_t len);

/* A text that is written in the program: its place and its length. */
#define PILOTLIGHT_TEXT(text) (text), (sizeof(text) - 1)

#endif
