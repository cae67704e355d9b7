"""Programs on the two hosts of a place (place.py), tuned by `bufwise run`, by a daemon, or not at all, and ended in order.

The daemon tunes one cgroup below the place's, has a socket and an empty configuration in the place's directory, and so leaves
the rest of the host alone. Programs are in process groups of their own: Ctrl-C reaches the script, which ends them by id.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import time

import figures
import place

# Seconds that a program may take to start or to end on a busy machine.
PATIENCE_S = 60
# Ports may be used again at once: a client that opens 20,000 connections a second has 55,000 of them.
NAMESPACE_SETTINGS = {"net/ipv4/tcp_tw_reuse": "1", "net/ipv4/ip_local_port_range": "10000 65535"}
# Routes name the congestion control, because the kernel may refuse it as a namespace's default.
LOCAL_ROUTES = ["local 127.0.0.0/8 dev lo table local", "local 127.0.0.1 dev lo table local"]
ROUTES = {"client": [*LOCAL_ROUTES, "198.18.0.0/15 dev near"],
          "server": [*LOCAL_ROUTES, "198.18.0.0/15 dev far", f"198.19.0.0/16 via {place.CLIENT}"]}
CONGESTION_CONTROL = "cubic"


class Trouble(Exception):
    """A program did not start or end as it should; one line."""


def set_up_namespace():
    for name, value in NAMESPACE_SETTINGS.items():
        with open(f"/proc/sys/{name}", "w") as setting:
            setting.write(value)


def await_true(what, condition, process, log, patience=PATIENCE_S, every=0.01):
    """Waits for a condition; a process that ends first, or too late a condition, is an error with the log's last line."""
    until = time.monotonic() + patience
    while not condition():
        if process.poll() is not None or time.monotonic() > until:
            lines = log.read_text(errors="replace").split("\n")
            said = next((line for line in reversed(lines) if line.strip()), "its log is empty")
            ended = f"exit status {process.returncode}" if process.returncode is not None else f"{patience} s are over"
            raise Trouble(f"{what}: {ended}: {said.strip()[:200]}")
        time.sleep(every)


class Stage:
    def __init__(self, here, bufwise):
        self.here, self.bufwise, self.failures = here, bufwise, []
        set_up_namespace()
        here.server.inside(set_up_namespace)
        for host, routes in ROUTES.items():
            for route in routes:
                words = ["ip", "route", "change", *route.split(), "congctl", CONGESTION_CONTROL]
                subprocess.run(self.at(host, words), check=True)
        (here.home / "empty.toml").write_text("")
        self.control = here.home / "control"
        # Server and client keep a processor each, so that runs differ only by the tuning; bufwise may use either processor.
        processors = sorted(os.sched_getaffinity(0))
        self.pins = {"server": processors[0], "client": processors[-1]} if len(processors) > 1 else {}

    def pinned(self, end, words):
        return ["taskset", "-c", self.pins[end], *words] if self.pins else words

    def at(self, host, words):
        """The command on a host: `server`, or `client`, which is this process's."""
        return self.here.server.command(*words) if host == "server" else [str(word) for word in words]

    @contextlib.contextmanager
    def group(self, name):
        """A cgroup below the place's; what is left in it ends with it."""
        path = self.here.group.path / name
        path.mkdir()
        try:
            yield path
        finally:
            # A `bufwise run` that was killed leaves a cgroup of its own below.
            for left in sorted(path.glob("**/"), reverse=True):
                place.Group.end(left)

    @contextlib.contextmanager
    def process(self, host, words, log, group=None, stdin=subprocess.DEVNULL):
        """A program that is ended by SIGTERM, and by SIGKILL where that does not help."""
        def prepare():
            place.die_with_parent()
            os.setpgid(0, 0)
            if group:
                (group / "cgroup.procs").write_text(str(os.getpid()))

        with open(log, "wb") as output:
            started = subprocess.Popen(self.at(host, words), stdin=stdin, stdout=output, stderr=output, preexec_fn=prepare,
                                       env=place.journal(output))
        try:
            yield started
        finally:
            if started.stdin:
                started.stdin.close()
            self.end(started)

    def end(self, process):
        """Seconds from SIGTERM to the end."""
        began = time.monotonic()
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                self.fail(f"{process.args[-1]}: not ended {PATIENCE_S} s after SIGTERM")
        return time.monotonic() - began

    def fail(self, what):
        self.failures.append(what)
        print(f"scale: {what}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def daemon(self, policy, group, *options):
        log = self.here.home / "daemon.log"
        words = [self.bufwise, "daemon", "--policy", policy, "--config", self.here.home / "empty.toml", "--cgroup",
                 f"/{self.here.group.path.name}/{group.name}", "--socket", self.control, *options]
        before = self.here.server.inside(place.settings)
        with self.process("server", words, log) as process:
            daemon = Daemon(self, process, log)
            await_true("the daemon", daemon.tunes, process, log)
            daemon.start_s = time.monotonic() - daemon.began
            yield daemon
            if process.poll() is not None:
                raise Trouble(f"the daemon ended with {process.returncode}")
            daemon.stop_s = self.end(process)
        if process.returncode:
            self.fail(f"the daemon: exit status {process.returncode} after SIGTERM")
        if (after := self.here.server.inside(place.settings)) != before:
            self.fail(f"settings of the namespace: {before} before the daemon, {after} after it")

    @contextlib.contextmanager
    def server(self, words, port, kind, policy, group=None):
        """A server that listens, `kind` of tuning: None, `run` or `daemon`, the latter of the server's cgroup."""
        with contextlib.ExitStack() as stack:
            group = group or stack.enter_context(self.group("server"))
            daemon = stack.enter_context(self.daemon(policy, group)) if kind == "daemon" else None
            words = self.pinned("server", words)
            if kind == "run":
                words = [self.bufwise, "run", "--policy", policy, "--", *words]
            log = self.here.home / "server.log"
            process = stack.enter_context(self.process("server", words, log, group))
            await_true(f"{words[-1]} does not listen", lambda: self.listens(port), process, log)
            yield daemon

    def listens(self, port):
        listening = self.here.server.command("ss", "-Hltn", f"sport = :{port}")
        return subprocess.run(listening, capture_output=True, check=True).stdout != b""


class Daemon:
    def __init__(self, stage, process, log):
        self.stage, self.process, self.log = stage, process, log
        self.began = time.monotonic()
        self.start_s = self.stop_s = None

    def tunes(self):
        return re.search("^<6>tuning ", self.log.read_text(), re.M) is not None

    def ask(self, *words):
        done = subprocess.run([self.stage.bufwise, *words, "--socket", self.stage.control], capture_output=True, text=True,
                              timeout=PATIENCE_S)
        if done.returncode:
            raise Trouble(f"bufwise {words[0]}: {done.stderr.strip()[-200:]}")
        return done.stdout

    def listed(self):
        """Connections in `ls` that the daemon has a record of."""
        return sum(one["policy"] is not None for one in json.loads(self.ask("ls", "--all", "--json"))["connections"])

    def counted(self):
        """Connections in the metrics that the daemon sizes."""
        kept = re.findall(r'^bufwise_connections\{[^}]*policy="(\w+)"[^}]*\} (\d+)', self.ask("metrics"), re.M)
        return sum(int(count) for policy, count in kept if policy != "none")

    def holds(self):
        """Memory, processor time, and the BPF maps' memory and entries."""
        pid = self.process.pid
        return figures.of_process(pid) | {"map_bytes": figures.map_memory(pid), "map_entries": figures.map_entries(pid)}
