"""Breadth-first search in a random graph (as SeBS 503). It reads nothing and writes nothing."""

import random
from collections import deque

from clock import Clock


def handler(event):
    clock = Clock()
    size = event["size"]
    edges = [[random.randrange(size) for _ in range(10)] for _ in range(size)]
    seen, queue = {0}, deque([0])
    while queue:
        for other in edges[queue.popleft()]:
            if other not in seen:
                seen.add(other)
                queue.append(other)
    return {"result": len(seen), "measurement": {"compute_time": clock.lap()}}
