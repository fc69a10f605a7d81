"""What no file of ours may do: run data as code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("protocols", "kernels", "engine", "server", "loadtest", "tests")

MODULES: Final = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "shelve"}
BUILTINS: Final = {"eval", "exec", "__import__"}
CALLS: Final = {
    "os.system",
    "os.popen",
    "yaml.load",
    "yaml.load_all",
    "yaml.unsafe_load",
    "yaml.unsafe_load_all",
    "yaml.full_load",
    "pandas.read_pickle",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
}
SUSPICIOUS: Final = (
    *("pickle", "dill", "joblib", "marshal", "shelve", "eval(", "exec(", "__import__", "yaml", "system", "popen"),
    *("shell=", "getoutput", "getstatus", "torch.load", "import torch as"),
)
"""Only files with such a text, as our formatter writes it, are parsed: parsing all of them takes 8 s."""
KEYWORDS: Final = {"shell": True, "allow_pickle": True}


def _sources() -> list[Path]:
    found = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return [ROOT / "__init__.py", *found]


def _is_suspicious(text: str) -> bool:
    return any(word in text for word in SUSPICIOUS) or (
        "from torch import" in text and re.search(r"\bload\b", text) is not None
    )


def _name(node: ast.expr) -> str:
    """Dotted, or empty for what is no plain name."""
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            owner = _name(node.value)
            return f"{owner}.{node.attr}" if owner else ""
    return ""


def _full_names(tree: ast.AST) -> dict[str, str]:
    """What names that were imported under other ones stand for."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def dangers(source: str) -> Iterator[str]:
    """``line: what`` for each."""
    tree = ast.parse(source)
    known = _full_names(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom(module=str(module), level=0):
                names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
            case ast.Call():
                yield from (f"{node.lineno}: {what}" for what in _in_call(node, known))
                continue
            case _:
                continue
        yield from (f"{node.lineno}: imports {name}" for name in names if MODULES & set(name.split(".")))


def _in_call(call: ast.Call, known: dict[str, str]) -> Iterator[str]:
    first, dot, rest = _name(call.func).partition(".")
    name = known.get(first, first) + dot + rest
    if name in BUILTINS or name in CALLS:
        yield f"calls {name}"
    given = {word.arg: word.value for word in call.keywords}
    if name == "torch.load":
        weights_only = given.get("weights_only")
        if not (isinstance(weights_only, ast.Constant) and weights_only.value is True):
            yield "torch.load without weights_only=True"
    for keyword, value in KEYWORDS.items():
        # what is not written down as False may be True
        if keyword in given and not (isinstance((it := given[keyword]), ast.Constant) and it.value is not value):
            yield f"{keyword} in {name or 'a call'}"


def test_no_file_runs_data_as_code() -> None:
    sources = _sources()
    assert len(sources) > 300
    found = []
    for path in sources:
        text = path.read_text()
        if _is_suspicious(text):
            found += [f"{path.relative_to(ROOT)}:{danger}" for danger in dangers(text)]
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pickle as json",
        "from pickle import loads",
        "from torch.serialization import pickle",
        "import multiprocessing, marshal",
        "import shelve",
        "eval(text)",
        "exec(compile(text, '', 'exec'))",
        "__import__(name)",
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=False)",
        "import torch\ntorch.load(path, weights_only=flag)",
        "import torch as t\nt.load(path)",
        "from torch import load\nload(path)",
        "from torch import load as read\nread(path)",
        "import yaml\nyaml.load(text, yaml.Loader)",
        "from yaml import unsafe_load as load\nload(text)",
        "import subprocess\nsubprocess.run(line, shell=True)",
        "import subprocess\nsubprocess.Popen(line, shell=flag)",
        "import os\nos.system(line)",
        "import numpy\nnumpy.load(path, allow_pickle=True)",
    ],
)
def test_each_danger_is_seen(source: str) -> None:
    assert _is_suspicious(source)
    assert list(dangers(source))


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.load(path, weights_only=True)",
        "import subprocess\nsubprocess.run(words, shell=False)",
        "import yaml\nyaml.safe_load(text)",
        "model.eval()",
        "re.compile(text)",
        "msgspec.json.decode(text)",
    ],
)
def test_what_is_harmless_is_left_alone(source: str) -> None:
    assert not list(dangers(source))
