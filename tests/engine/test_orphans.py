"""Burying what a dead engine left, in a process of its own that takes orphans."""

import subprocess
import sys
import textwrap

SCRIPT = """
    import ctypes, os, subprocess, sys, time
    from stentor.engine.processes.process import REAPED_AT_ONCE, _children, reap_orphans

    CHILD = "import ctypes, os, sys\\nif os.fork(): os._exit(0)\\n"
    CHILD += "ctypes.CDLL(None).prctl(15, sys.argv[1].encode())  # PR_SET_NAME"

    def dead_children(count):
        deadline = time.monotonic() + 50
        while time.monotonic() < deadline:
            found = [pid for pid in _children() if ") Z" in open(f"/proc/{pid}/stat").read()]
            if len(found) == count:
                return found
            time.sleep(0.01)
        raise SystemExit(f"{found} are dead, not {count}")

    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: as the first process of a container
    mine = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    for name in ("stentor-worker", "stentor-forksrv", "someone-else"):
        subprocess.run([sys.executable, "-c", CHILD, name], check=True)
    dead_children(4)
    assert reap_orphans() == 1
    dead_children(3)
    assert reap_orphans() == 0
    MANY = "import ctypes, os\\nfor _ in range(150):\\n  if not os.fork():\\n"
    MANY += "    ctypes.CDLL(None).prctl(15, b'stentor-worker')\\n    os._exit(0)"
    subprocess.run([sys.executable, "-c", MANY], check=True)
    dead_children(3 + 150)
    assert [reap_orphans() for _ in range(4)] == [REAPED_AT_ONCE, REAPED_AT_ONCE, 150 - 2 * REAPED_AT_ONCE, 0]
    assert mine.wait() == 3, "it is somebody else's to reap"
"""


def test_dead_workers_are_reaped_so_many_at_a_time_and_nobody_else() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(SCRIPT)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
