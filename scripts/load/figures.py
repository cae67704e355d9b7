"""Figures of processes, their sockets and the kernel's BPF objects: memory, descriptors, processor time, numbers."""

import contextlib
import ctypes
import os
import pathlib
import platform
import re
import struct
import subprocess

TICKS = os.sysconf("SC_CLK_TCK")
# The number of the system call bpf(2), and the commands that are used.
BPF = {"x86_64": 321, "aarch64": 280}.get(platform.machine())
MAP_GET_NEXT_KEY, PROG_GET_NEXT_ID, MAP_GET_NEXT_ID, MAP_GET_FD_BY_ID, LINK_GET_NEXT_ID = 4, 11, 12, 14, 31
HASH = 1

libc = ctypes.CDLL(None, use_errno=True)


def read(path):
    return pathlib.Path(path).read_text()


def descendants(pid):
    """The process and all below it."""
    found = [pid]
    for one in found:
        with contextlib.suppress(OSError):
            for task in pathlib.Path(f"/proc/{one}/task").iterdir():
                found += map(int, read(task / "children").split())
    return found


def of_process(pid):
    """Memory in bytes, processor time in seconds, numbers of the rest; of a process that has ended: nothing."""
    try:
        rollup = dict(re.findall(r"^(Rss|Pss):\s+(\d+) kB", read(f"/proc/{pid}/smaps_rollup"), re.M))
        stat = read(f"/proc/{pid}/stat").rsplit(")", 1)[1].split()
        return {
            "rss": int(rollup["Rss"]) * 1024,
            "pss": int(rollup["Pss"]) * 1024,
            "cpu": (int(stat[11]) + int(stat[12])) / TICKS,
            "threads": int(stat[17]),
            "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        }
    except (OSError, KeyError):
        return {}


def of_tree(pid):
    """The sums over a process and all below it. Processor time of children that have ended counts, too."""
    total = {"processes": 0}
    for one in descendants(pid):
        for key, value in of_process(one).items():
            total[key] = total.get(key, 0) + value
            total["processes"] += key == "rss"
    with contextlib.suppress(OSError):
        stat = read(f"/proc/{pid}/stat").rsplit(")", 1)[1].split()
        total["cpu"] = total.get("cpu", 0) + (int(stat[13]) + int(stat[14])) / TICKS
    return total


def of_sockets(namespace):
    """Number of TCP sockets on a host, and the kernel memory of their queues."""
    text = subprocess.run(namespace.command("ss", "-Htanm"), capture_output=True, text=True, check=True).stdout
    memory = re.findall(r"skmem:\(r(\d+),rb\d+,t\d+,tb\d+,f(\d+),w(\d+)", text)
    return {"sockets": len(re.findall(r"^(?!TIME-WAIT|\s)\S", text, re.M)),
            "socket_memory": sum(sum(map(int, one)) for one in memory)}


def bpf(command, attributes):
    """bpf(2); what it wrote, or None."""
    buffer = ctypes.create_string_buffer(attributes, 128)
    result = libc.syscall(BPF, command, buffer, 128)
    return (result, buffer.raw) if result >= 0 else None


def bpf_objects():
    """How many programs, maps and links there are on the host."""
    counts = {}
    for kind, command in (("programs", PROG_GET_NEXT_ID), ("maps", MAP_GET_NEXT_ID), ("links", LINK_GET_NEXT_ID)):
        last, counts[kind] = 0, 0
        while BPF and (found := bpf(command, struct.pack("=II", last, 0))):
            last = struct.unpack_from("=I", found[1], 4)[0]
            counts[kind] += 1
    return counts


def map_entries(pid):
    """Entries of the hash maps that a process has open."""
    maps, entries = {}, 0
    with contextlib.suppress(OSError):
        for one in pathlib.Path(f"/proc/{pid}/fdinfo").iterdir():
            found = dict(re.findall(r"^(map_type|key_size|map_id):\s+(\d+)", read(one), re.M))
            if int(found.get("map_type", 0)) == HASH:
                maps[int(found["map_id"])] = int(found["key_size"])
    for number, size in maps.items():
        opened = BPF and bpf(MAP_GET_FD_BY_ID, struct.pack("=I", number))
        if opened:
            entries += count_keys(opened[0], size)
            os.close(opened[0])
    return entries


def map_memory(pid):
    """Bytes of the maps that a process has open, as the kernel counts them, with their entries."""
    total = 0
    with contextlib.suppress(OSError):
        for one in pathlib.Path(f"/proc/{pid}/fdinfo").iterdir():
            if "map_type:" in (text := read(one)):
                total += int(re.search(r"^memlock:\s+(\d+)", text, re.M)[1])
    return total


def count_keys(descriptor, size):
    key, following = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
    count, at = 0, 0
    # While entries come and go, the walk may start over; the bound ends it.
    while count < 100_000 and bpf(MAP_GET_NEXT_KEY, struct.pack("=I4xQQ", descriptor, at, ctypes.addressof(following))):
        key.raw, at = following.raw, ctypes.addressof(key)
        count += 1
    return count
