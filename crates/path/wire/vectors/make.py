"""Writes frames.json and control.json. It builds the bytes by hand, so that a codec is not tested against itself."""

from __future__ import annotations

import json
import struct
from pathlib import Path

HERE = Path(__file__).parent
KINDS = {
    "INVOKE": 1, "HTTP": 2, "SECRETS": 3, "CANCEL": 4, "WINDOW": 5, "READY": 16, "RESULT": 17, "ERROR": 18, "HEAD": 19, "CHUNK": 20, "END": 21,
    "INIT_ERROR": 22,
}  # fmt: skip
META_LEN_MAX, SMALL_META_LEN_MAX = 256 * 1024, 4 * 1024
REQUEST_LEN_MAX, RESULT_LEN_MAX, PIECE_LEN_MAX = 8 * 1024 * 1024, 6 * 1024 * 1024 + 100, 64 * 1024
LEN_MAX = {
    "INVOKE": (META_LEN_MAX, REQUEST_LEN_MAX),
    "HTTP": (META_LEN_MAX, REQUEST_LEN_MAX),
    "SECRETS": (META_LEN_MAX, 0),
    "CANCEL": (0, 0),
    "WINDOW": (0, 4),
    "READY": (SMALL_META_LEN_MAX, 0),
    "RESULT": (SMALL_META_LEN_MAX, RESULT_LEN_MAX),
    "ERROR": (SMALL_META_LEN_MAX, RESULT_LEN_MAX),
    "HEAD": (META_LEN_MAX, PIECE_LEN_MAX),
    "CHUNK": (SMALL_META_LEN_MAX, PIECE_LEN_MAX),
    "END": (SMALL_META_LEN_MAX, PIECE_LEN_MAX),
    "INIT_ERROR": (SMALL_META_LEN_MAX, RESULT_LEN_MAX),
}


def header(meta_len: int, body_len: int, stream: int, kind: int, flags: int = 0, reserved: int = 0) -> bytes:
    return struct.pack("<IIIBBH", meta_len, body_len, stream, kind, flags, reserved)


def valid(name: str, kind: str, stream: int, meta: object, body: str) -> dict[str, object]:
    meta_bytes = b"" if meta is None else json.dumps(meta, separators=(",", ":"), ensure_ascii=False).encode()
    body_bytes = body.encode()
    return {
        "name": name,
        "hex": (header(len(meta_bytes), len(body_bytes), stream, KINDS[kind]) + meta_bytes + body_bytes).hex(),
        "kind": kind,
        "stream": stream,
        "meta": meta,
        "body": body,
    }


def with_inputs(name: str, stream: int, inputs: list[dict[str, object]], **more: object) -> dict[str, object]:
    meta = {**INVOKE_META, "inputs": inputs, **more}
    meta_bytes = json.dumps(meta, separators=(",", ":")).encode()
    frame = header(len(meta_bytes), 2, stream, KINDS["INVOKE"], flags=len(inputs)) + meta_bytes + b"{}"
    return {"name": name, "hex": frame.hex(), "stream": stream, "meta": meta, "descriptors": len(inputs)}


def without_descriptors(name: str, stream: int, inputs: list[dict[str, object]], **more: object) -> dict[str, object]:
    meta = {**INVOKE_META, "inputs": inputs, **more}
    meta_bytes = json.dumps(meta, separators=(",", ":")).encode()
    frame = header(len(meta_bytes), 2, stream, KINDS["INVOKE"]) + meta_bytes + b"{}"
    return {"name": name, "hex": frame.hex(), "stream": stream, "meta": meta}


PROBLEM = "the store answers 503 – später".encode()


def progress(kind: int, value: int) -> str:
    return struct.pack("<BQ", kind, value).hex()


def invalid(name: str, data: bytes, error: str) -> dict[str, str]:
    return {"name": name, "hex": data.hex(), "error": error}


INVOKE_META = {
    "id": "8f6e0a52-0d5a-4f0e-9c6b-0f9a1c2d3e4f",
    "arn": "arn:aws:lambda:local:000000000000:function:thumbnail:live",
    "version": "3",
    "deadline_ms": 1767225600000,
}
HTTP_META = {
    **INVOKE_META,
    "method": "POST",
    "path": "/a%20b",
    "query": "x=1&y=%C3%A9",
    "root_path": "/fn/thumbnail",
    "headers": [["host", "localhost:8080"], ["content-type", "text/plain"]],
    "client": ["192.0.2.7", 50123],
    "scheme": "http",
}
READY_META = {"forked_ns": 1000, "sandboxed_ns": 2000, "initialised_ns": 3000}
DONE_META = {"started_ns": 18446744073709551, "finished_ns": 18446744073709999}
ERROR_BODY = json.dumps(
    {"errorMessage": "ü is not a number", "errorType": "ValueError", "requestId": INVOKE_META["id"], "stackTrace": []},
    ensure_ascii=False,
)

FRAMES = {
    "valid": [
        valid("an event", "INVOKE", 1, INVOKE_META, '{"key": "value"}'),
        valid("an event with everything", "INVOKE", 2, {**INVOKE_META, "client_context": "{}", "trace": "Root=1-5", "trace_state": "a=1"}, "null"),
        valid("the highest stream", "INVOKE", 0xFFFFFFFF, INVOKE_META, "{}"),
        valid("text beyond ASCII", "INVOKE", 3, {**INVOKE_META, "id": "ключ"}, '"🔥"'),
        valid("a request", "HTTP", 4, HTTP_META, "hello"),
        valid("a request without body", "HTTP", 5, {**HTTP_META, "method": "GET"}, ""),
        valid("secrets", "SECRETS", 0, {"environment": {"DB_PASSWORD": "пароль"}}, ""),
        valid("a client that has gone", "CANCEL", 4, None, ""),
        valid("room for more", "WINDOW", 4, None, "\x00\x00\x02\x00"),
        valid("ready", "READY", 0, READY_META, ""),
        valid("a result", "RESULT", 1, DONE_META, '{"n": 1}'),
        valid("an error", "ERROR", 1, DONE_META, ERROR_BODY),
        valid("a head", "HEAD", 4, {"status": 200, "headers": [["a", "b"]], "started_ns": 5}, ""),
        valid("a head that is the whole", "HEAD", 4, {"status": 200, "headers": [["a", "b"]], **DONE_META}, "all"),
        valid("a head with its first bytes", "HEAD", 4, {"status": 404, "headers": [], "started_ns": 5}, "<p>"),
        valid("a chunk", "CHUNK", 4, None, "more"),
        valid("an empty chunk", "CHUNK", 4, None, ""),
        valid("an end", "END", 4, DONE_META, "last"),
        valid("an init error", "INIT_ERROR", 0, None, ERROR_BODY),
    ],
    "invalid": [
        invalid("nothing at all is not a frame", b"", "truncated"),
        invalid("half a header", header(0, 0, 1, 1)[:8], "truncated"),
        invalid("a header without its last byte", header(0, 0, 1, 1)[:15], "truncated"),
        invalid("no meta", header(2, 0, 1, 1), "truncated"),
        invalid("half a meta", header(2, 0, 1, 1) + b"{", "truncated"),
        invalid("no body", header(2, 2, 1, 1) + b"{}", "truncated"),
        invalid("half a body", header(2, 2, 1, 1) + b"{}{", "truncated"),
        invalid("kind 0", header(0, 0, 1, 0), "unknown_kind"),
        invalid("kind 6", header(0, 0, 1, 6), "unknown_kind"),
        invalid("kind 15", header(0, 0, 1, 15), "unknown_kind"),
        invalid("kind 23", header(0, 0, 1, 23), "unknown_kind"),
        invalid("kind 255", header(0, 0, 1, 255), "unknown_kind"),
        invalid("reserved 1", header(0, 0, 1, 1, reserved=1), "reserved_not_zero"),
        invalid("reserved 65535", header(0, 0, 1, 1, reserved=65535), "reserved_not_zero"),
        *(
            invalid(f"meta of {kind} one too long", header(LEN_MAX[kind][0] + 1, 0, 1, number), "meta_too_long")
            for kind, number in KINDS.items()
        ),
        invalid("meta of 4 GiB", header(0xFFFFFFFF, 0, 1, 1), "meta_too_long"),
        *(
            invalid(f"body of {kind} one too long", header(0, LEN_MAX[kind][1] + 1, 1, number), "body_too_long")
            for kind, number in KINDS.items()
        ),
        invalid("body of 4 GiB", header(0, 0xFFFFFFFF, 1, 1), "body_too_long"),
        invalid("65 descriptors", header(0, 0, 1, 1, flags=65), "too_many_descriptors"),
        invalid("255 descriptors", header(0, 0, 1, 2, flags=255), "too_many_descriptors"),
        invalid("descriptors come before reserved", header(0, 0, 1, 1, flags=65, reserved=1), "too_many_descriptors"),
        invalid("all is wrong: kind comes first", b"\xff" * 16, "unknown_kind"),
        invalid("body comes before reserved", header(0, 0xFFFFFFFF, 1, 1, reserved=1), "body_too_long"),
        invalid("meta comes before body", header(0xFFFFFFFF, 0xFFFFFFFF, 1, 1), "meta_too_long"),
    ],
    "with_inputs": [
        with_inputs("mapped memory", 1, [{"name": "photo", "kind": "memory", "len": 7}]),
        with_inputs("memory and a socket", 2, [{"name": "a", "kind": "memory", "len": 0}, {"name": "db", "kind": "socket"}]),
        with_inputs(
            "memory and an input that failed",
            3,
            [{"name": "a", "kind": "memory", "len": 1}],
            failed_inputs=[{"name": "mask", "problem": "there is no such object"}],
        ),
        with_inputs(
            "objects of stores",
            4,
            [
                {
                    "name": "photo",
                    "kind": "memory",
                    "len": 7,
                    "store": {
                        "kind": "s3",
                        "endpoint": "http://127.0.0.1:9000",
                        "bucket": "photos",
                        "key": "a/b.png",
                        "headers": [["etag", '"0cc175b9"'], ["content-type", "image/png"]],
                        "asked_ns": 93784000000001,
                    },
                },
                {
                    "name": "state",
                    "kind": "memory",
                    "len": 1,
                    "store": {"kind": "redis", "host": "localhost", "port": 6379, "database": 0, "key": "state:1", "asked_ns": 7},
                },
            ],
        ),
    ],
    "with_decoded": [
        with_inputs(
            "decoded inputs",
            7,
            [
                {
                    "name": "photo",
                    "kind": "memory",
                    "len": 6,
                    "decoded": {"by": "image", "array": {"element": "|u1", "shape": [1, 2, 3]}},
                },
                {
                    "name": "prices",
                    "kind": "memory",
                    "len": 45,
                    "decoded": {
                        "by": "parquet",
                        "table": {
                            "rows": 2,
                            "columns": [
                                {"name": "price", "values": {"fixed": {"element": "<f8", "at": 0}}, "present": 16},
                                {"name": "city", "values": {"bytes": {"ends": 24, "at": 40, "len": 5, "text": True}}},
                            ],
                        },
                    },
                },
            ],
        ),
    ],
    "with_growing": [
        with_inputs(
            "inputs that still arrive",
            6,
            [
                {"name": "video", "kind": "growing", "len": 4096},
                {"name": "log", "kind": "growing"},
                {"name": "video", "kind": "progress"},
                {"name": "log", "kind": "progress"},
            ],
        ),
    ],
    "progress": [
        {"name": "some, then all", "hex": progress(0, 5) + progress(0, 9) + progress(1, 9), "there": 9, "end": "whole", "problem": ""},
        {"name": "a failure", "hex": progress(0, 3) + progress(2, len(PROBLEM)) + PROBLEM.hex(), "there": 3, "end": "failed", "problem": PROBLEM.decode()},
        {"name": "still on its way", "hex": progress(0, 3), "there": 3, "end": "", "problem": ""},
    ],
    "with_paths": [
        without_descriptors(
            "inputs with paths",
            5,
            [
                {"name": "photo", "kind": "memory", "len": 7, "path": "/proc/17/fd/3"},
                {
                    "name": "weights",
                    "kind": "memory",
                    "len": 152,
                    "path": "/proc/17/fd/4",
                    "decoded": {"by": "npy", "array": {"element": "<f4", "shape": [2, 3], "at": 128}},
                },
                {
                    "name": "prices",
                    "kind": "memory",
                    "len": 1500,
                    "path": "/proc/17/fd/5",
                    "decoded": {"by": "parquet", "arrow": {"rows": 1000, "columns": 2}},
                },
                {"name": "settings", "kind": "memory", "len": 2, "path": "/proc/17/fd/6", "decoded": {"by": "json", "json": {}}},
            ],
            failed_inputs=[{"name": "mask", "problem": "there is no such object"}],
        ),
    ],
    "sequences": [
        {
            "name": "two frames in one piece",
            "hex": (header(0, 2, 1, 20) + b"ab" + header(0, 0, 2, 20)).hex(),
            "frames": [["CHUNK", 1, "ab"], ["CHUNK", 2, ""]],
        },
        {
            "name": "HEAD and END in one piece",
            "hex": (header(2, 2, 7, 19) + b"{}ok" + header(2, 0, 7, 21) + b"{}").hex(),
            "frames": [["HEAD", 7, "ok"], ["END", 7, ""]],
        },
    ],
}

SPEC = {"level": "function", "cwd": "/var/task", "sys_path": ["/var/task"], "handler": "app.handler", "interface": "event"}

CONTROL = {
    "requests": [
        {"name": "a worker", "message": {"op": "fork", "id": 7, "as": "worker", "fds": ["channel", "log"], "spec": SPEC}, "fd_count": 2},
        {"name": "a template", "message": {"op": "fork", "id": 8, "as": "template", "fds": ["channel"], "spec": SPEC}, "fd_count": 1},
        {
            "name": "every descriptor",
            "message": {
                "op": "fork",
                "id": 9,
                "as": "worker",
                "fds": ["channel", "log", "pid", "mnt", "ipc", "uts", "net", "cgroup", "cgroup", "cgroup"],
                "spec": SPEC,
            },
            "fd_count": 10,
        },
    ],
    "refused": [
        {"name": "a name too many", "message": {"op": "fork", "id": 1, "as": "worker", "fds": ["channel", "log"], "spec": SPEC}, "fd_count": 1},
        {"name": "a name too few", "message": {"op": "fork", "id": 1, "as": "worker", "fds": ["channel"], "spec": SPEC}, "fd_count": 2},
        {"name": "no channel", "message": {"op": "fork", "id": 1, "as": "worker", "fds": ["log"], "spec": SPEC}, "fd_count": 1},
        {"name": "two channels", "message": {"op": "fork", "id": 1, "as": "worker", "fds": ["channel", "channel"], "spec": SPEC}, "fd_count": 2},
        {"name": "an unknown name", "message": {"op": "fork", "id": 1, "as": "worker", "fds": ["channel", "time"], "spec": SPEC}, "fd_count": 2},
        {"name": "fds is no list", "message": {"op": "fork", "id": 1, "as": "worker", "fds": "channel", "spec": SPEC}, "fd_count": 1},
        {"name": "an unknown role", "message": {"op": "fork", "id": 1, "as": "king", "fds": ["channel"], "spec": SPEC}, "fd_count": 1},
        {"name": "no specification", "message": {"op": "fork", "id": 1, "as": "worker", "fds": ["channel"]}, "fd_count": 1},
        {"name": "a template without specification", "message": {"op": "fork", "id": 1, "as": "template", "fds": ["channel"]}, "fd_count": 1},
        {"name": "an unknown interface", "message": {"op": "fork", "id": 1, "as": "worker", "fds": ["channel"], "spec": {"interface": "cgi"}}, "fd_count": 1},
        {"name": "a uid that is a string", "message": {"op": "fork", "id": 1, "as": "worker", "fds": ["channel"], "spec": {"uid": "root"}}, "fd_count": 1},
        {"name": "a filter that is no filter", "message": {"op": "fork", "id": 1, "as": "worker", "fds": ["channel"], "spec": {"filter": "AAAA"}}, "fd_count": 1},
    ],
}  # fmt: skip

for file, document in (("frames.json", FRAMES), ("control.json", CONTROL)):
    (HERE / file).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
