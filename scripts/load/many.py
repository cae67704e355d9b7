"""One end of many connections, a process of its own: `many.py serve|connect PAIR COUNT ACTIVE ADDRESS`, until its input ends.

The server sends 4 KB five times a second over each of the first ACTIVE connections; the client reads. Both print `open N` once
so many are open. A limit of descriptors may be hard even for root, so there are at most PER_PAIR connections between two
processes. Clients have an address in 198.19.0.0/16 (place.py) for each pair.
"""

import os
import resource
import select
import socket
import sys
import time

PORT = 7000
PER_PAIR = 15_000
# A message goes out five times a second on each; the connections take turns in 20 slices.
EVERY_S, SLICES, MESSAGE = 0.2, 20, bytes(4096)
SPARE = 100


def pairs(count, active):
    """Connections and active ones of each pair."""
    number = -(-count // PER_PAIR)
    part = lambda all_: [(all_ * (at + 1)) // number - (all_ * at) // number for at in range(number)]
    return list(zip(part(count), part(active)))


def allow_descriptors(count):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + SPARE, max(hard, count + SPARE)))


def told_to_end(seconds):
    return bool(select.select([0], [], [], max(seconds, 0))[0])


def serve(pair, count, active, address):
    listener = socket.create_server((address, PORT + pair), backlog=4096)
    print("listens", flush=True)
    connections = []
    while len(connections) < count:
        connections.append(listener.accept()[0].detach())
        os.set_blocking(connections[-1], False)
    print(f"open {count}", flush=True)
    beat, slices = time.monotonic(), [connections[at:active:SLICES] for at in range(SLICES)]
    while True:
        for one in slices:
            for descriptor in one:
                try:
                    os.write(descriptor, MESSAGE)
                except BlockingIOError:
                    pass
            beat = max(beat + EVERY_S / SLICES, time.monotonic() - EVERY_S)
            if told_to_end(beat - time.monotonic()):
                return


def connect(pair, count, address):
    readers, source = select.epoll(), f"198.19.{pair}.1"
    for _ in range(count):
        one = socket.socket()
        one.setsockopt(socket.IPPROTO_IP, getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24), 1)
        one.bind((source, 0))
        one.connect((address, PORT + pair))
        one.setblocking(False)
        readers.register(one.detach(), select.EPOLLIN)
    print(f"open {count}", flush=True)
    readers.register(0, select.EPOLLIN)
    while True:
        for descriptor, _ in readers.poll():
            if descriptor == 0:
                return
            # A connection whose other end is gone stays readable: do not poll it any more. Both processes are told to end then.
            if not os.read(descriptor, 1 << 16):
                readers.unregister(descriptor)


def main():
    role, (pair, count, active), address = sys.argv[1], map(int, sys.argv[2:5]), sys.argv[5]
    allow_descriptors(count)
    if role == "serve":
        serve(pair, count, active, address)
    else:
        connect(pair, count, address)


if __name__ == "__main__":
    main()
