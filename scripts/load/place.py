"""A place for servers and clients: two hosts in network namespaces, joined by a pair of devices, and a cgroup (as root).

This process is the clients' host: it moves into a namespace of its own, in which all of 198.19.0.0/16 are its addresses, so
that each client can come from another one. Servers are started on the other host, SERVER. Everything started is in the
cgroup, and ends with it; a place that was killed is cleared by the next one.
"""

import contextlib
import ctypes
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

CLIENT, SERVER = "198.18.0.1", "198.18.0.2"
CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1
SETTINGS = ["net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem", "net/core/rmem_max", "net/core/wmem_max"]

libc = ctypes.CDLL(None, use_errno=True)


def checked(result, what):
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result


def die_with_parent():
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def settings():
    """Maxima of the network namespace that this thread is in."""
    there = [pathlib.Path("/proc/sys", name) for name in SETTINGS]
    return {path.name: " ".join(path.read_text().split()) for path in there if path.exists()}


def address(number):
    """The address of a client."""
    return f"198.19.{number // 250 % 250}.{number % 250 + 1}"


def unified():
    """Where cgroup v2 is mounted."""
    for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
        if line.split(" ")[2] == "cgroup2":
            return pathlib.Path(line.split(" ")[1])
    sys.exit("cgroup v2 is not mounted")


def of_killed(directory, name):
    """What places of this name have left there whose process is gone."""
    number = lambda path: path.name.rsplit("-", 1)[1]
    return [one for one in directory.glob(f"bufwise-{name}-*")
            if number(one).isdigit() and not os.path.exists(f"/proc/{number(one)}")]


def journal(output):
    """The environment in which bufwise takes this open file for the journal: lines begin with a priority and are not delayed."""
    found = os.fstat(output.fileno())
    return {**os.environ, "JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}


def inside(namespace, work):
    """What `work` gives in an open network namespace, in a thread of its own."""
    result = []

    def enter():
        checked(libc.setns(namespace.fileno(), CLONE_NEWNET), "setns")
        result.append(work())

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    return result[0]


class Group:
    """A cgroup with everything that is started, this process included."""

    def __init__(self, name):
        root = unified()
        self.home = root / re.search(r"^0::/(.*)$", pathlib.Path("/proc/self/cgroup").read_text(), re.M)[1]
        for old in of_killed(root, name):
            self.end(old)
        self.path = root / f"bufwise-{name}-{os.getpid()}"
        self.path.mkdir()
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    @staticmethod
    def end(path):
        (path / "cgroup.kill").write_text("1")
        for _ in range(500):
            with contextlib.suppress(OSError):
                return path.rmdir()
            time.sleep(0.02)
        print(f"cannot remove {path}", file=sys.stderr)

    def close(self):
        (self.home / "cgroup.procs").write_text(str(os.getpid()))
        self.end(self.path)


class Namespace:
    """A network namespace; it ends with its process."""

    def __init__(self):
        script = "ip link set lo up && echo up; exec cat"
        self.process = subprocess.Popen(["unshare", "-n", "sh", "-c", script], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, preexec_fn=die_with_parent)
        if self.process.stdout.read(3) != b"up\n":
            raise OSError("cannot make a network namespace")

    def command(self, *words):
        return ["nsenter", "-t", str(self.process.pid), "-n", "--", *map(str, words)]

    def inside(self, work):
        """What `work` gives inside, in a thread of its own."""
        with open(f"/proc/{self.process.pid}/ns/net") as namespace:
            return inside(namespace, work)

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


class Place:
    """Both hosts, the cgroup, and a directory; `with` ends all of it."""

    def __init__(self, name):
        if os.geteuid():
            sys.exit(f"{name}: needs root")
        self.name, self.stack = name, contextlib.ExitStack()

    def __enter__(self):
        # Programs of other users read the files, also where root's are kept from them.
        os.umask(0o022)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: sys.exit(128 + number))
        with self.stack as stack:
            temporary = pathlib.Path(tempfile.gettempdir())
            for old in of_killed(temporary, self.name):
                shutil.rmtree(old, ignore_errors=True)
            self.home = temporary / f"bufwise-{self.name}-{os.getpid()}"
            self.home.mkdir(mode=0o755)
            stack.callback(shutil.rmtree, self.home, ignore_errors=True)
            self.group = Group(self.name)
            stack.callback(self.group.close)
            self.host_settings = settings()
            self.host = stack.enter_context(open("/proc/self/ns/net"))
            checked(libc.unshare(CLONE_NEWNET), "unshare")
            stack.callback(lambda: checked(libc.setns(self.host.fileno(), CLONE_NEWNET), "setns"))
            self.server = Namespace()
            stack.callback(self.server.close)
            self.join()
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.stack.close()

    def join(self):
        peer = str(self.server.process.pid)
        for words in (f"link add near type veth peer name far netns {peer}", "link set lo up",
                      f"address add {CLIENT}/15 dev near", "link set near up", "route add local 198.19.0.0/16 dev lo"):
            subprocess.run(["ip", *words.split()], check=True)
        # One neighbour: the kernel has room for about a thousand, in all namespaces together.
        for words in (f"address add {SERVER}/15 dev far", "link set far up", f"route add 198.19.0.0/16 via {CLIENT}"):
            subprocess.run(self.server.command("ip", *words.split()), check=True)

    def serve(self, *words, log):
        """Starts a program on the server's host."""
        with open(log, "ab") as output:
            return subprocess.Popen(self.server.command(*words), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                    preexec_fn=die_with_parent, env=journal(output))

    def settings_of_host(self):
        """The maxima of the host, as they are now."""
        return inside(self.host, settings)
