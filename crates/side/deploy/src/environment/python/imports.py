"""Prints the top-level modules of the requested distributions in a folder, as a JSON list.

argv: the folder, then the declared distributions' names, which count when the installer left no REQUESTED marks.
"""
import importlib.metadata
import json
import re
import sys

SUFFIXES = (".py", ".so", ".pyd")
# What some wheels install beside their package by mistake.
STRAY = {"bin", "build", "dist", "doc", "docs", "example", "examples", "include", "lib", "scripts", "share", "test", "tests"}
# Tools of installers, which functions seldom import. An import of setuptools replaces `distutils` and extends `sys.path`.
TOOLS = {"pip", "setuptools", "wheel"}


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def modules(distribution):
    top_level = distribution.read_text("top_level.txt")
    if top_level:
        names = {line.strip().split("/")[0] for line in top_level.splitlines()}
    else:
        names = set()
        for path in distribution.files or ():
            first = path.parts[0]
            if len(path.parts) > 1:
                if path.suffix in SUFFIXES:
                    names.add(first)
            elif path.suffix in SUFFIXES:
                names.add(first.split(".")[0])
    return {name for name in names if name.isidentifier() and not name.startswith("_") and name not in STRAY}


folder, declared = sys.argv[1], {normal(name) for name in sys.argv[2:]}
distributions = list(importlib.metadata.distributions(path=[folder]))
requested = [one for one in distributions if one.read_text("REQUESTED") is not None]
if not requested:
    requested = [one for one in distributions if normal(one.metadata["Name"] or "") in declared]
requested = [one for one in requested if normal(one.metadata["Name"] or "") not in TOOLS]
print(json.dumps(sorted(set().union(*map(modules, requested)))))
