"""Compiles the modules below a folder to bytecode, into the pycache prefix. Prints the name of each file before it is compiled.

argv: the folder, then the name of the last file to leave out: the files before it are done, or cannot be compiled.
"""
import compileall
import os
import py_compile
import sys

root, after = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
names = []
for folder, folders, files in os.walk(root):
    folders[:] = [name for name in folders if name != "__pycache__"]
    names += [os.path.relpath(os.path.join(folder, name), root) for name in files if name.endswith(".py")]
for name in sorted(names):
    if after is not None and name <= after:
        continue
    print(ascii(name), flush=True)
    # Files that do not compile are left out; their import reports the error.
    compileall.compile_file(
        os.path.join(root, name), quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
