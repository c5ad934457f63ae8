"""What is known not to be alike, with the reason. A row that is no longer true fails its test."""

from __future__ import annotations

# Packages whose template is not forked.
NOT_FORKED: dict[str, str] = {}

_BLAS = "OpenBLAS and OpenMP have one thread in a forked worker"
_JEMALLOC = "jemalloc returns memory from the calling thread, not from one of its own"
_TELEMETRY = "a session of the import computes with one thread; no telemetry, which would write files below `$HOME`"

# By package, the aspects that differ.
DIFFERENCES: dict[str, dict[str, str]] = {
    "aws-xray-sdk": dict.fromkeys(["files after", "files before"], "outside, it does not heed `$TMPDIR`"),
    "matplotlib": {
        "threads before": _BLAS,
        **dict.fromkeys(["files after", "files before"], "outside, root's fonts are cached in `/var/cache`, not in `/tmp`"),
    },
    "numpy": {"threads before": _BLAS},
    "onnxruntime": dict.fromkeys(
        ["descriptors after", "descriptors before", "files after", "files before", "threads before"], _TELEMETRY
    ),
    "opencv-python-headless": {"threads before": _BLAS},
    "pandas": {"threads before": _BLAS},
    "polars": {"threads before": _JEMALLOC},
    "pyarrow": {"threads before": _JEMALLOC},
    "scikit-learn": {"threads before": _BLAS},
    "scipy": {"threads before": _BLAS},
}

# Aspects that depend on when something in the background ends. They are not compared.
UNSTEADY: dict[str, dict[str, str]] = {
    "grpcio": {"descriptors after": "those of the event engine are closed at some time after the server has stopped"},
}

# What one should know of a package that starts threads or remembers its process (python/pilot_worker/forking/forkable.py).
REMARKS: dict[str, str] = {
    "duckdb": "its pool is ended in the template, and started in the worker",
    "grpcio": "a channel of the import has threads that cannot be ended: create it in the handler",
    "opencv-python-headless": "its pool is ended in the template, and started by the first parallel function",
    "opentelemetry-sdk": "the thread that exports is ended in the template, and started in the worker",
    "polars": "a query at import starts a pool that cannot be ended: create frames there, and query in the handler",
    "psutil": "`psutil.Process()` of the import is the template's process",
    "pymongo": "threads that watch servers are ended in the template; the first operation starts them",
    "s3fs": "the thread of the event loop is ended in the template, and started in the worker",
}
