"""Ten faults, each put into a copy of the tree: the suite has to notice every one.

``make faults`` runs those tests of ``make test`` that are of the part with the fault, and prints which of them failed
first. Exit code 1 where none did.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
SECONDS: Final = 600.0
_HANGS: Final = ("--timeout", "90")
"""A test that waits for what a fault holds back fails after so many seconds; sound ones of these parts take under ten.
"""


class Fault(NamedTuple):
    where: str
    file: str
    sound: str
    broken: str
    tests: tuple[str, ...]


FAULTS: Final = (
    Fault(
        "scheduler: a block is added one position too late",
        "engine/core/scheduler/decode.py",
        "if at == sequence.num_blocks * block_size:",
        "if at > sequence.num_blocks * block_size:",
        ("tests/engine/scheduler",),
    ),
    Fault(
        "block pool: blocks without a hash are not given away first",
        "engine/core/cache/blocks.py",
        "self._free.move_to_end(block, last=False)",
        "self._free.move_to_end(block, last=True)",
        ("tests/engine/cache",),
    ),
    Fault(
        "prefix cache: a block is named without what comes before it",
        "engine/core/cache/prefix.py",
        'held = parent + array("i", tokens)',
        'held = array("i", tokens)',
        ("tests/engine/cache",),
    ),
    Fault(
        "sampler: top_p takes one token too many",
        "kernels/sampling/reference.py",
        "before < need",
        "before <= need",
        ("tests/kernels/test_sampling_draw.py", "tests/engine/worker/test_sampler.py"),
    ),
    Fault(
        "detokenizer: bytes that are no character are lost",
        "server/text/tokenizers/detokenizer.py",
        'codecs.getincrementaldecoder("utf-8")("replace")',
        'codecs.getincrementaldecoder("utf-8")("ignore")',
        ("tests/server/text/test_detokenizer.py",),
    ),
    Fault(
        "tool parser: a negative number ends the arguments",
        "server/parsing/tools/json_reader.py",
        r'_PLAIN: Final = re.compile(r"[\s\w,:.+\-]+")',
        r'_PLAIN: Final = re.compile(r"[\s\w,:.+]+")',
        ("tests/server/parsing/tools",),
    ),
    Fault(
        "keys: any key is right",
        "server/common/keys.py",
        "hmac.compare_digest(self._digest, other._digest)",
        "hmac.compare_digest(self._digest[:0], other._digest[:0])",
        ("tests/server/middleware",),
    ),
    Fault(
        "journal: the last token of each sequence is told to the next engine no more",
        "engine/client/stream.py",
        "outputs = [self._open.get(index, []) for index in sequences]",
        "outputs = [self._open.get(index, [])[:-1] for index in sequences]",
        ("tests/engine/test_recovery.py", "tests/engine/test_streamed_input.py"),
    ),
    Fault(
        "kernel: a norm reads and writes one column past its rows",
        "kernels/norm/triton_tiles.py",
        "fits = row_fits & (columns < WIDTH)",
        "fits = row_fits & (columns <= WIDTH)",
        ("tests/kernels/test_norm_triton.py",),
    ),
    Fault(
        "lease: what a dead process held is never free again",
        "engine/sharing/lease.py",
        "return 0 if self._is_dead(int(words[_HOLDER]) - 1) else _LOOK_NS",
        "return _LOOK_NS",
        ("tests/engine/test_lease.py",),
    ),
)


def copy_of_the_tree(into: Path) -> None:
    """What is in version control, and a package path that leads to it."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, into / name)
    (into / ".link").mkdir()
    (into / ".link" / "stentor").symlink_to("..")


def first_failure(tree: Path, tests: Sequence[str], turn: int) -> str:
    """The name of a test that failed; "" where all passed, or none ran."""
    chosen = ("-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=unshrunk", *_HANGS, "--turn", str(turn))
    command = [sys.executable, "-P", "-m", "pytest", *chosen, *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree / ".link")}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=SECONDS)
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if done.returncode == 0:
        return ""
    if not failed:
        raise SystemExit(f"the tests did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return failed[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turn", type=int, default=0, help="as of `make test`")
    parser.add_argument("--only", default="", help="faults whose description has this text")
    given = parser.parse_args()
    missed = 0
    for fault in (each for each in FAULTS if given.only in each.where):
        with tempfile.TemporaryDirectory(prefix="stentor-fault-") as folder:
            tree = Path(folder)
            copy_of_the_tree(tree)
            source = (tree / fault.file).read_text()
            if source.count(fault.sound) != 1:
                raise SystemExit(f"{fault.file} has `{fault.sound}` {source.count(fault.sound)} times; expected once")
            (tree / fault.file).write_text(source.replace(fault.sound, fault.broken))
            began = time.monotonic()
            caught = first_failure(tree, fault.tests, given.turn)
        missed += not caught
        seconds = time.monotonic() - began
        print(f"{fault.where}\n    {f'caught in {seconds:.0f} s by {caught}' if caught else 'NOT CAUGHT'}", flush=True)
    print(f"{missed} not caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
