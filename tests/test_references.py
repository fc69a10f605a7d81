"""What docs and docstrings name exists: files, options, and the modules, classes and functions of the code."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from stentor.server.options.option import OPTIONS

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("engine", "kernels", "loadtest", "protocols", "server", "tests")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
NAMED = [page for page in PAGES if page.name != "CHANGELOG.md"]
"""The changelog names what there was."""
SUFFIXES = ("cpp", "h", "md", "py", "toml", "txt")
"""Of files of ours; JSON is named of models and clients, too."""
OF_OTHERS = {"build-arg", "health-cmd", "ipc", "shm-size"}
"""Options of other programs."""
REFERENCE = re.compile(r":(?:mod|class|func|meth|attr|data|exc):`([^`]+)`")
Members = dict[str, ast.ClassDef | None]


def _page(path: Path) -> str:
    return str(path.relative_to(ROOT))


# ---- pages


@cache
def _files() -> tuple[str, ...]:
    """Every file of the repository, and every folder, by its path from the root, after a slash."""
    top = [path for path in ROOT.iterdir() if path.name in (*FOLDERS, "docs") or path.is_file()]
    below = [path for folder in top if folder.is_dir() for path in folder.rglob("*") if "__pycache__" not in path.parts]
    return tuple(f"/{path.relative_to(ROOT)}" for path in (*top, *below))


@pytest.mark.parametrize("page", NAMED, ids=_page)
def test_the_files_that_a_page_names_exist(page: Path) -> None:
    spans = re.findall(r"`([\w.-]+(?:/[\w.-]+)*/?)`", page.read_text())
    folders = tuple(f"{folder}/" for folder in (*FOLDERS, "docs"))
    ours = {span for span in spans if span.startswith(folders) or (span.rpartition(".")[2] in SUFFIXES and "." in span)}
    missing = {span for span in ours if not any(file.endswith(f"/{span.rstrip('/')}") for file in _files())}
    assert not missing


@pytest.mark.parametrize("page", NAMED, ids=_page)
def test_the_options_that_a_page_names_exist(page: Path) -> None:
    known = {spelling for option in OPTIONS for spelling in option.spellings} | {"config"}
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    ours = {name for name in re.findall(r"`--(?:\[no-\])?([a-z][\w-]+)", prose) if name not in OF_OTHERS}
    unknown = ours - known
    assert {name for name in unknown if f'"--{name}"' not in _sources()} == set()


@pytest.mark.parametrize("page", PAGES, ids=_page)
def test_a_page_says_nothing_under_the_same_heading_twice_and_its_tables_have_heads(page: Path) -> None:
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ .*", prose, re.MULTILINE) if page in NAMED else []
    assert [each for each in headings if headings.count(each) > 1] == []
    tables = re.findall(r"^(?<!\|\n)\|.*\n(.*)", prose, re.MULTILINE)
    assert [line for line in tables if not re.fullmatch(r"[|: -]+", line)] == []


@cache
def _sources() -> str:
    """Of the tools, whose options are not the server's."""
    return "".join(path.read_text() for folder in ("loadtest", "tests", "server/main") for path in _modules_of(folder))


def _modules_of(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


# ---- docstrings


def _file_of(module: str) -> Path | None:
    """Of a module's dotted name."""
    path = ROOT.joinpath(*module.split(".")[1:])
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


@cache
def _members(file: Path) -> Members:
    return _bound(ast.parse(file.read_text()).body)


def _bound(body: list[ast.stmt]) -> Members:
    """The names that statements define or import, and of classes their definition."""
    found: Members = {}
    for node in body:
        match node:
            case ast.ClassDef():
                found[node.name] = node
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found[node.name] = None
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [each for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
                found |= dict.fromkeys(each.id for each in names)
            case ast.Import() | ast.ImportFrom():
                found |= dict.fromkeys(alias.asname or alias.name for alias in node.names)
            case ast.If() | ast.Try():
                found |= _bound(node.body)
    return found


def _leads(module: str, path: list[str]) -> bool:
    """Whether ``path`` names something from ``module`` on. Of a class with bases any member may be."""
    if not path or _leads_below(module, path):
        return True
    file = _file_of(module)
    if file is None or path[0] not in (members := _members(file)):
        return False
    made = members[path[0]]
    if len(path) == 1 or made is None:
        return True
    return bool(made.bases) or path[1] in _bound(made.body) or f"self.{path[1]}" in file.read_text()


def _leads_below(module: str, path: list[str]) -> bool:
    below = f"{module}.{path[0]}"
    return (_file_of(below) is not None or ROOT.joinpath(*below.split(".")[1:]).is_dir()) and _leads(below, path[1:])


def _dangling(file: Path) -> Iterator[str]:
    text = file.read_text()
    package = ["stentor", *file.relative_to(ROOT).parent.parts]
    module = ".".join(package if file.name == "__init__.py" else [*package, file.stem])
    for found in REFERENCE.finditer(text):
        name = found[1].lstrip("~")
        bare = name.lstrip(".")
        path, up = bare.split("."), len(name) - len(bare)
        if up:
            known = _leads(".".join(package[: len(package) - up + 1]), path) or (up == 1 and _leads(module, path))
        elif path[0] in ("stentor", *FOLDERS):
            known = _leads("stentor", path[path[0] == "stentor" :])
        else:  # of this module, of a class in it, or of another library
            known = re.search(rf"\b{path[0]}\b", text.replace(found[0], "")) is not None
        if not known:
            yield f"{file.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}: {found[0]}"


def test_what_a_docstring_refers_to_exists() -> None:
    dangling = [line for folder in FOLDERS for file in _modules_of(folder) for line in _dangling(file)]
    assert not dangling, "\n".join(dangling)
