"""Tasks, a thread and a stream."""

import anyio


async def several():
    sender, receiver = anyio.create_memory_object_stream(4)
    async with anyio.create_task_group() as group, sender, receiver:
        for number in range(3):
            group.start_soon(sender.send, number)
        found = sorted([await receiver.receive() for _ in range(3)])
    return [found, await anyio.to_thread.run_sync(sum, found)]


async def late():
    with anyio.fail_after(0.01):
        await anyio.sleep(5)


def work():
    return anyio.run(several)


def fail():
    anyio.run(late)
