# SPDX-License-Identifier: Apache-2.0
"""A network between two hosts that does what networks do: a proxy that delays, reorders, damages and withholds.

    bad_network.py PORT

Takes the TCP connections that the host's packet filter redirects to PORT, makes each one to where it was meant
for, and passes the bytes on. How is told as JSON objects on standard input, one a line, for all connections from
then on:

    {"delay": 0.2}            seconds that each piece is late, each way
    {"jitter": 0.05}          more, at random
    {"flip": 100000}          one bit of each so many bytes is turned
    {"reorder": 0.1}          the share of pieces that change places with the next one
    {"withhold": true}        nothing is passed on any more, and no connection ends: they are half-open
    {"withhold": false}       what was kept goes on
    {"reset": true}           the connections that there are end at once, both ways, by a reset

Prints "ready" when it listens. Its own connections carry MARK, by which the packet filter knows them.
"""

import asyncio
import json
import random
import socket
import struct
import sys

MARK = 7
SO_ORIGINAL_DST = 80
PIECE = 64 << 10


class Faults:
    def __init__(self):
        self.delay = self.jitter = self.reorder = 0.0
        self.flip = 0
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.random = random.Random(1)
        self.ends = set()  # of the connections that there are

    def tell(self, wishes):
        for name, value in wishes.items():
            if name == "withhold":
                self.flowing.clear() if value else self.flowing.set()
            elif name == "reset":
                for end in list(self.ends):
                    reset(end)
            elif name in ("delay", "jitter", "reorder", "flip"):
                setattr(self, name, value)
            else:
                raise ValueError(f"no such fault: {name}")


def reset(writer):
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def damage(faults, piece, passed):
    """The piece with a bit turned wherever the connection's bytes come to a multiple of `flip`."""
    if not faults.flip:
        return piece
    piece = bytearray(piece)
    for at in range(-passed % faults.flip, len(piece), faults.flip):
        if passed + at > 0:
            piece[at] ^= 1 << faults.random.randrange(8)
    return bytes(piece)


async def pass_on(faults, reader, writer):
    """One direction of a connection. Pieces leave in order, each as late as it is to be."""
    loop = asyncio.get_running_loop()
    queue = asyncio.Queue(1024)

    async def read():
        while True:
            piece = await reader.read(PIECE)
            await queue.put((loop.time() + faults.delay + faults.random.random() * faults.jitter, piece))
            if not piece:
                return

    reading = asyncio.create_task(read())
    passed = 0
    held = None
    try:
        while True:
            due, piece = await queue.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            await faults.flowing.wait()
            if not piece:
                if held:
                    writer.write(held)
                writer.write_eof()
                return
            if held is None and faults.random.random() < faults.reorder:
                held = piece
                continue
            for part in (piece, held) if held else (piece,):
                writer.write(damage(faults, part, passed))
                passed += len(part)
            held = None
            await writer.drain()
    finally:
        reading.cancel()


async def serve(faults, reader, writer):
    raw = writer.get_extra_info("socket").getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16)
    port, address = struct.unpack("!2xH4s8x", raw)
    out = socket.socket(socket.AF_INET)
    out.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
    out.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        await asyncio.sleep(2 * faults.delay)  # a handshake takes its time, too
        await faults.flowing.wait()
        await loop.sock_connect(out, (socket.inet_ntoa(address), port))
    except OSError:
        out.close()
        reset(writer)  # refused, as the other end did
        return
    for end in (out, writer.get_extra_info("socket")):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    other_reader, other_writer = await asyncio.open_connection(sock=out)
    faults.ends.update((writer, other_writer))
    ways = [asyncio.create_task(pass_on(faults, reader, other_writer)),
            asyncio.create_task(pass_on(faults, other_reader, writer))]
    try:
        await asyncio.gather(*ways)
    except OSError:
        pass  # one end is gone, so the other goes
    finally:
        for way in ways:
            way.cancel()
        for end in (writer, other_writer):
            faults.ends.discard(end)
            end.transport.abort()


async def main():
    faults = Faults()
    tasks = set()

    def connected(reader, writer):
        task = asyncio.create_task(serve(faults, reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    await asyncio.start_server(connected, "0.0.0.0", int(sys.argv[1]))
    print("ready", flush=True)
    told = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(told), sys.stdin)
    while line := await told.readline():
        faults.tell(json.loads(line))
        print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
