"""The process itself, and the machine."""

import os

import psutil

MEMORY = psutil.virtual_memory()


def work():
    now = psutil.Process()
    return [now.pid == os.getpid(), now.cwd() == os.getcwd(), now.memory_info().rss < MEMORY.total, psutil.cpu_count() > 0]


def fail():
    psutil.Process(-1)
