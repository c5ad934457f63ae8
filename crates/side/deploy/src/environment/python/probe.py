"""Prints what a Python interpreter is, as one line of JSON."""
import importlib.util
import json
import os
import sys

print(
    json.dumps(
        {
            "implementation": sys.implementation.name,
            "version": "%d.%d.%d" % sys.version_info[:3],
            "abi": sys.implementation.cache_tag + getattr(sys, "abiflags", ""),
            # A virtual environment's interpreter is a link to the one it was made with.
            "executable": os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable),
            "prefix": sys.base_prefix,
            "pip": importlib.util.find_spec("pip") is not None,
        }
    )
)
