"""Compiles the modules below a folder to bytecode. Prints the name of each file before it is compiled.

argv: the folder, the folder for the bytecode (as `sys.pycache_prefix`), then the name of the last file to leave out: the files before
it are done, or cannot be compiled.

The prefix is set here and not with `-X pycache_prefix`: with it, Python finds no bytecode of its own library and compiles what this
script imports, which takes longer than a small function. For the same reason, it does without `compileall` and its imports.
"""
import os
import py_compile
import sys

root, sys.pycache_prefix, after = sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None
names = []
for folder, folders, files in os.walk(root):
    folders[:] = [name for name in folders if name != "__pycache__"]
    names += [os.path.relpath(os.path.join(folder, name), root) for name in files if name.endswith(".py")]
for name in sorted(names):
    if after is not None and name <= after:
        continue
    print(ascii(name), flush=True)
    # Files that do not compile or cannot be read are left out; their import reports the error.
    try:
        py_compile.compile(
            os.path.join(root, name), quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
        )
    except OSError:
        pass
