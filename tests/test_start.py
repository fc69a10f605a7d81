"""What each process imports before it is of use: less is a faster start, and more is a decision."""

import subprocess
import sys

import pytest

MODULES = {
    "the command, before it starts the fork server": ("stentor.server.main.cli", 41),
    "the command, before it starts the engine": ("stentor.server.main.commands", 160),
    "the server, before it listens": ("stentor.server.main.commands stentor.server.app.lifecycle", 985),
    "the engine": ("stentor.engine.core.entry", 117),
}
"""What is imported, and how many modules there may then be beside Python's own: some 3 % more than there were."""
LATE = ("rich", "numpy", "PIL", "httpx", "huggingface_hub", "llguidance", "sqlite3", "torch", "transformers")
"""Of none of these a process needs anything before the first request that asks for it, and torch is the worker's."""
PROGRAM = """
import importlib, sys
interpreter = set(sys.modules)
for name in sys.argv[1:]:
    importlib.import_module(name)
imported = [name for name in sys.modules if name not in interpreter]
print(*(name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names))
"""
"""What an environment makes its interpreter import as it starts (an editable package's finder, say) is not counted."""


@pytest.mark.parametrize("process", MODULES)
def test_no_process_imports_more_than_it_did_before_it_is_of_use(process: str) -> None:
    modules, most = MODULES[process]
    command = [sys.executable, "-P", "-c", PROGRAM, *modules.split()]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert len(found) <= most, "import what is new where it is first used, or raise the number"
    assert not {name.partition(".")[0] for name in found}.intersection(LATE)
