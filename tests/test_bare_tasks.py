"""What no file of the server may do: start a task that has no owner."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("protocols", "engine", "server")

STARTERS: Final = {"create_task", "ensure_future"}
"""Not ``run_coroutine_threadsafe``: the thread that calls it holds the future, and waits for it."""
TASKS: Final = {"asyncio.Task", "asyncio.tasks.Task"}
OWNER: Final = "server/common/task_scope.py"
"""The one module that may: its tasks are kept, waited for, and cancelled with their owner."""


def bare_tasks(source: str) -> Iterator[str]:
    """``line: what`` for each start of a task outside a task group."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in STARTERS:
                yield f"{node.lineno}: {name}"
            case ast.Call(func=ast.Attribute() as func) if ast.unparse(func) in TASKS:
                yield f"{node.lineno}: {ast.unparse(func)}"
            case ast.ImportFrom(names=names):
                yield from (f"{node.lineno}: imports {alias.name}" for alias in names if alias.name in STARTERS)


def test_no_task_is_started_without_an_owner() -> None:
    sources = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    assert len(sources) > 300
    found = {}
    for path in sources:
        text = path.read_text()
        if any(word in text for word in (*STARTERS, ".Task(")) and (bare := list(bare_tasks(text))):
            found[str(path.relative_to(ROOT))] = bare
    assert [len(found.pop(OWNER, []))] == [1]
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "asyncio.create_task(work())",
        "loop.create_task(work())",
        "asyncio.get_running_loop().create_task(work())",
        "from asyncio import create_task as start\nstart(work())",
        "asyncio.ensure_future(work())",
        "asyncio.Task(work())",
    ],
)
def test_each_way_to_start_one_is_seen(source: str) -> None:
    assert list(bare_tasks(source))


@pytest.mark.parametrize(
    "source",
    [
        "async with anyio.create_task_group() as tasks:\n    tasks.start_soon(work)",
        "tasks: set[asyncio.Task[None]] = set()",
    ],
)
def test_task_groups_and_types_are_left_alone(source: str) -> None:
    assert not list(bare_tasks(f"async def main():\n    {source.replace(chr(10), chr(10) + '    ')}"))
