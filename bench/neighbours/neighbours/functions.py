"""The functions of the benchmark: an honest neighbour, and the hostile ones. Each is the text of an `app.py`."""

NEIGHBOUR = "def handler(event, context):\n    return event\n"

# Prints from four processes without end: with tee(2) from one large pipe into another one if it may, otherwise with write(2).
PRINTING = """
import ctypes, fcntl, os

def enlarge(pipe):
    try:
        fcntl.fcntl(pipe, 1031, 1 << 20)
    except OSError:
        pass

def handler(event, context):
    line = b"x" * 65535 + b"\\n"
    for _ in range(3):
        if os.fork() == 0:
            break
    source, full = os.pipe()
    enlarge(full)
    enlarge(1)
    os.set_blocking(full, False)
    try:
        while True:
            os.write(full, line)
    except BlockingIOError:
        pass
    tee = ctypes.CDLL(None).tee
    while True:
        if tee(source, 1, 1 << 20, 0) < 0:
            os.write(1, line)
"""

SLOW = "import time\n\ndef handler(event, context):\n    time.sleep(60)\n"

# Takes what comes on WebSockets.
WEBSOCKET = """
async def app(scope, receive, send):
    if scope["type"] != "websocket":
        return
    await receive()
    await send({"type": "websocket.accept"})
    while (await receive())["type"] != "websocket.disconnect":
        pass
"""

# Prints as many lines as it is asked for.
SAYS = "def handler(event, context):\n    for number in range(event):\n        print('line', number, 'x' * 60)\n"

# A long answer, for clients that do not read it.
LONG = "def handler(event, context):\n    return 'x' * 6_000_000\n"

# Announces an answer of 6 MB on its invocation channel, writes most of it and stops.
PARTIAL = """
import os, socket, struct, time

def handler(event, context):
    for number in os.listdir("/proc/self/fd"):
        try:
            one = socket.socket(fileno=os.dup(int(number)))
        except OSError:
            continue
        if one.family == socket.AF_UNIX and one.type == socket.SOCK_STREAM:
            one.sendall(struct.pack("<IIIBBH", 2, 6_000_000, 1, 17, 0, 0) + b"{}")
            one.sendall(bytes(5_900_000))
    time.sleep(60)
"""

# Starts processes as fast as it may, for ever.
FORKS = """
import os, time

def forks():
    while True:
        try:
            if os.fork() == 0:
                time.sleep(0.2)
                os._exit(0)
        except OSError:
            time.sleep(0.01)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
"""

FORKING = (
    FORKS
    + """
def handler(event, context):
    forks()
"""
)

# Takes memory until it is ended.
HOG = """
def handler(event, context):
    held = []
    while True:
        block = bytearray(8 << 20)
        for at in range(0, len(block), 4096):
            block[at] = 1
        held.append(block)
"""

# All of it at the same time: one process prints, one starts others, one takes and leaves memory, and one computes.
EVERYTHING = (
    FORKS
    + """
def prints():
    line = b"x" * 4095 + b"\\n"
    while True:
        os.write(1, line)

def allocates():
    while True:
        held = [bytearray(8 << 20) for _ in range(25)]
        for block in held:
            for at in range(0, len(block), 4096):
                block[at] = 1

def computes():
    while True:
        pass

def handler(event, context):
    for work in (prints, forks, allocates):
        if os.fork() == 0:
            work()
    computes()
"""
)

# A program that speaks the Runtime API and streams pieces of the length that the event says, without end. 0: it computes instead.
PIECES = """
import http.client, json, os, socket

INVOCATION = "/2018-06-01/runtime/invocation/"
host, _, port = os.environ["AWS_LAMBDA_RUNTIME_API"].partition(":")
daemon = http.client.HTTPConnection(host, int(port))
daemon.request("GET", INVOCATION + "next")
answer = daemon.getresponse()
length = json.loads(answer.read())
number = answer.headers["Lambda-Runtime-Aws-Request-Id"]
while length == 0:
    pass
stream = socket.create_connection((host, int(port)))
head = [
    f"POST {INVOCATION}{number}/response HTTP/1.1",
    f"Host: {host}",
    "Lambda-Runtime-Function-Response-Mode: streaming",
    "Content-Type: application/octet-stream",
    "Transfer-Encoding: chunked",
]
stream.sendall("\\r\\n".join(head).encode() + b"\\r\\n\\r\\n")
block = (b"%x\\r\\n" % length + b"x" * length + b"\\r\\n") * (65536 // length)
while True:
    stream.sendall(block)
"""

# At import, sends messages that are none on the template's control socket. `{mark}` makes each deployment a new version.
FLOODING = """
# {mark}
import os, socket, time

end = time.monotonic() + 5
for number in os.listdir("/proc/self/fd"):
    try:
        one = socket.socket(fileno=os.dup(int(number)))
    except OSError:
        continue
    if one.family == socket.AF_UNIX and one.type == socket.SOCK_SEQPACKET:
        while time.monotonic() < end:
            try:
                one.send(b"nonsense" * 1000)
            except OSError:
                break

def handler(event, context):
    return event
"""

# 2 MB in one expression. `{mark}` makes each deployment a new version.
LARGE_SOURCE = "# {mark}\nx = [" + "(1,a)," * 350_000 + "]\n" + NEIGHBOUR
