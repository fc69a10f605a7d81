"""Figures of a process tree, read while it lives and after it has changed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from stentor.server.observability.processes import ProcessCollector, usage_by_role
from stentor.tests.support.counting import lines_executed

WORKER = """
import ctypes, subprocess, sys, time
libc = ctypes.CDLL(None)
libc.prctl(15, b"stentor-worker", 0, 0, 0)
held = bytearray(64 << 20)
files = [open("/dev/null") for _ in range(50)]
began = time.process_time()
while time.process_time() - began < 0.2: pass
print("ready", flush=True)
sys.stdin.read()
"""
ENGINE = f"""
import ctypes, subprocess, sys, threading
ctypes.CDLL(None).prctl(15, b"stentor-engine", 0, 0, 0)
def start():
    global child
    child = subprocess.Popen([sys.executable, "-c", {WORKER!r}], stdin=sys.stdin)
    done.wait()
done = threading.Event()
thread = threading.Thread(target=start)
thread.start()
sys.stdin.read()
done.set()
"""
SERVER = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {ENGINE!r}], stdin=sys.stdin)
child.wait()
"""


def test_a_tree_is_added_up_by_role_wherever_it_was_started() -> None:
    # below a process of its own: what other tests left dying below this one would be counted, or hide its neighbours
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        assert server.stdout.readline() == "ready\n"
        usage = usage_by_role(server.pid)
        server.stdin.close()
    assert usage.keys() == {"server", "engine", "worker"}
    worker = usage["worker"]
    assert worker.processes == usage["engine"].processes == usage["server"].processes == 1
    assert worker.resident_bytes > 64 << 20
    assert 50 <= worker.open_fds < 70
    assert 0.15 < worker.cpu_seconds < 5
    assert not usage_by_role(server.pid), "it has ended"


def test_a_process_that_asks_finds_its_own_figures() -> None:
    before = os.times()
    ours = usage_by_role(os.getpid())["server"]
    open_fds = len(os.listdir("/proc/self/fd"))
    after = os.times()
    assert ours.processes == 1
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert before.user + before.system - 2 * tick < ours.cpu_seconds < after.user + after.system + 2 * tick
    assert ours.open_fds == open_fds, "both counts include the folder that is read"
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    assert abs(ours.resident_bytes - pages * os.sysconf("SC_PAGE_SIZE")) < 32 << 20


def test_the_page_has_each_figure_with_model_and_role() -> None:
    registry = CollectorRegistry()
    registry.register(ProcessCollector("m", os.getpid()))
    page = generate_latest(registry).decode()
    for name in ("process_resident_memory_bytes", "process_open_fds", "processes", "process_cpu_seconds_total"):
        assert f'stentor:{name}{{model_name="m",process="server"}} ' in page


TWO_WORKERS = """
import ctypes, subprocess, sys
work = "import ctypes, sys, time; ctypes.CDLL(None).prctl(15, b'stentor-worker', 0, 0, 0)\\n"
work += "while time.process_time() < 0.1: pass\\nprint(flush=True); sys.stdin.read()"
for _ in range(2):
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE) as child:
        sys.stdin.readline()
    print(flush=True)
    sys.stdin.readline()
"""


def test_cpu_seconds_are_kept_of_those_that_have_ended() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TWO_WORKERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        registry = CollectorRegistry()
        registry.register(ProcessCollector("m", server.pid))
        labels = {"model_name": "m", "process": "worker"}
        seconds = []
        for _ in range(4):  # with a worker, without one, with another, and without again
            server.stdout.readline()
            seconds.append(registry.get_sample_value("stentor:process_cpu_seconds_total", labels) or 0.0)
            server.stdin.write("\n")
            server.stdin.flush()
    one, after_one, two, after_two = seconds
    assert after_one == one >= 0.09
    assert after_two == two >= one + 0.09


def test_reading_is_cheap_enough_for_the_event_loop() -> None:
    """Of a shell and two children, each with its one thread: what this process has depends on other tests."""
    command = ["sh", "-c", "sleep 60 & sleep 60 & echo; wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as shell:
        assert shell.stdout is not None
        shell.stdout.readline()  # both have been started
        lines = lines_executed(lambda: usage_by_role(shell.pid))
        found = usage_by_role(shell.pid)
        os.killpg(shell.pid, signal.SIGKILL)
    assert {role: one.processes for role, one in found.items()} == {"server": 1, "helper": 2}
    assert lines < 3 * 400
