"""Greenlets and an event."""

import gevent
from gevent import event, pool, socket

POOL = pool.Pool(4)


def work():
    done = event.AsyncResult()
    gevent.spawn_later(0.001, done.set, "woken")
    left, right = socket.socketpair()
    with left, right:
        sender = gevent.spawn(left.sendall, b"sent")
        received = right.recv(10).decode()
        sender.join()
    return [done.get(timeout=5), received, POOL.map(lambda n: n * n, range(4))]


def fail():
    with gevent.Timeout(0.01, OSError("too late")):
        gevent.sleep(5)
