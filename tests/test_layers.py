"""Who may import whom, at run time and in the text; what each folder may import, `make lint` checks."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("protocols", "kernels", "engine", "server", "loadtest")
HEAVY = {"worker", "layers", "models", "quantization"}
"""Below engine/; what is in loading/ imports torch where it builds tensors, and not elsewhere."""
HEAVY_PACKAGES = (
    "stentor.engine.tts.transformers.",  # in the speech process alone
    "stentor.server.media.processors.images.",  # in the media process alone
)
HEAVY_MODULES = (
    *(  # in the speech process alone
        f"stentor.engine.tts.{name}" for name in ("codec_weights", "snac", "vocos")
    ),
    "stentor.server.media.processors.model_processor",  # and these the media process: they are transformers' processors
    "stentor.server.media.processors.own_processor",
    "stentor.server.media.processors.videos_of_models",
    "stentor.server.media.processors.grids",
    "stentor.server.media.processors.load_processor",
    "stentor.server.media.processors.pictures",
    "stentor.server.media.processors.processor_classes",
    "stentor.server.media.processors.published",
    "stentor.server.media.processors.slices",
    "stentor.server.media.processors.sounds",
    "stentor.server.media.processors.tiled",
    "stentor.server.media.processors.audio",
    "stentor.server.media.processors.fun_asr",
    "stentor.server.media.processors.inkling",
    "stentor.server.media.processors.waveforms",
)

WITHOUT_TORCH = """
import importlib, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "triton"):
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Refuse())
for name in sys.argv[1:]:
    importlib.import_module(name)
assert "torch" not in sys.modules
print("imported", len(sys.argv) - 1)
"""


def _sources() -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("stentor", *(parts[:-1] if parts[-1] == "__init__" else parts)))


MADE_UP_WORKERS = (
    "stentor.loadtest.echo_worker",
    "stentor.tests.e2e.ragged_worker",
    "stentor.tests.engine.mortal_worker",
    "stentor.tests.engine.odd_worker",
)
"""They compute nothing, and dozens of tests start processes of them: to import torch would cost each a second."""


def _torch_free() -> list[str]:
    """Every module of the server, of protocols, and of the engine but for the worker's side; and workers of tests."""
    names = []
    for path in _sources():
        folder, *rest = path.relative_to(ROOT).parts
        if folder in ("protocols", "server") or (folder == "engine" and rest[0] not in HEAVY | {"loading"}):
            names.append(_module(path))
    light = (name for name in names if name not in HEAVY_MODULES and not name.startswith(HEAVY_PACKAGES))
    return [*light, *MADE_UP_WORKERS]


def test_the_server_and_the_engine_s_bookkeeping_import_where_there_is_no_torch() -> None:
    modules = _torch_free()
    assert {
        "stentor.server.main.commands",
        "stentor.server.app.application",
        "stentor.engine.core.loop",
        "stentor.engine.client.client",
    } <= set(modules)
    done = subprocess.run(
        [sys.executable, "-P", "-c", WITHOUT_TORCH, *modules], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"imported {len(modules)}\n"


def test_a_child_that_starts_in_the_repository_does_not_see_our_kernels_as_the_package_of_that_name() -> None:
    code = (
        "import importlib.util\n"
        "for name in ('kernels', 'engine', 'server', 'protocols', 'tests'):\n"
        "    found = importlib.util.find_spec(name)\n"
        "    print(name, found and found.origin)\n"
        "print('stentor.kernels', importlib.util.find_spec('stentor.kernels').origin)\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    seen = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert (ROOT / "kernels" / "__init__.py").samefile(seen.pop("stentor.kernels"))
    for name, origin in seen.items():
        assert origin == "None" or ROOT not in Path(origin).resolve().parents or ".venv" in origin, name


def _imports_from(tree: ast.Module) -> Iterator[ast.ImportFrom]:
    """At any depth. Of statements alone, which takes a third of the time of walking all expressions."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.ImportFrom):
            yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            left.extend(getattr(node, field, ()))


def test_imports_are_relative_within_a_folder_and_absolute_across() -> None:
    for path in _sources():
        folder = path.relative_to(ROOT).parts[0]
        depth = len(path.relative_to(ROOT).parts) - 1
        text = path.read_text()
        if not re.search(rf"\bfrom[\s\\]+(?:stentor\.{folder}|(?:\.[\s\\]*){{{depth + 1}}})", text):
            continue  # parsing all of them takes 2 s
        for node in _imports_from(ast.parse(text)):
            if node.level == 0 and node.module:
                assert not node.module.startswith(f"stentor.{folder}"), f"{path}:{node.lineno}: relative here"
            assert node.level <= depth, f"{path}:{node.lineno}: a relative import leaves {folder}/"


FORBIDDEN = {
    "pickle": r"\b(?:import|from)\s+(?:c?pickle|marshal|shelve|dill)\b|torch\.load\(",
    "eval": r"(?<![\w.])(?:eval|exec)\(",
    "shared_memory": r"multiprocessing\.shared_memory|SharedMemory\(",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_source_holds(what: str) -> None:
    found = [
        f"{path}:{number}"
        for path in _sources()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(FORBIDDEN[what], line)
    ]
    assert not found


def test_children_are_started_so_that_the_working_folder_is_not_on_their_path() -> None:
    """Every ``sys.executable`` in the sources is followed by ``-P``."""
    for path in _sources():
        for match in re.finditer(r"\[\s*sys\.executable,\s*([^,\]]*)", path.read_text()):
            assert match[1] == '"-P"', f"{path}: {match[0]}"
