"""``task: plugin``: the operator's own code between a client's data and a model."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from stentor.engine.loading.errors import CheckpointError
from stentor.protocols.ipc.pooling import PoolingTask
from stentor.server.pooling.plugin import PluginPrompt, open_plugin
from stentor.tests.server.pooling.asking import post
from stentor.tests.server.pooling.pooler import CLS, DIMENSIONS, SEP, A, FakePooler

pytestmark = pytest.mark.anyio


class Places:
    """Vectors of names, by name."""

    task: PoolingTask | None = None

    def prompts(self, data: Any) -> Sequence[PluginPrompt]:
        if not isinstance(data, list):
            raise ValueError("a list of names is expected")
        if data == ["break"]:
            raise KeyError("/srv/secret")
        return [PluginPrompt(name) for name in data]

    def answer(self, data: Any, vectors: "Sequence[memoryview[float]]") -> Any:
        if data == ["z"]:
            return object()
        return {name: np.asarray(vector).shape for name, vector in zip(map(str, data), vectors, strict=True)}


class Tokens(Places):
    task: PoolingTask | None = "token_embed"

    def answer(self, data: Any, vectors: "Sequence[memoryview[float]]") -> Any:
        return [len(vector) for vector in vectors]


async def ask(data: Any, plugin: Any = None, **fields: Any) -> tuple[httpx.Response, FakePooler]:
    engine = FakePooler()
    body = {"task": "plugin", "data": data, **fields}
    return await post(engine, "/pooling", body, plugin=plugin or Places()), engine


async def test_a_plugin_makes_prompts_of_data_and_an_answer_of_vectors() -> None:
    answer, engine = await ask(["a", "b c"])
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["data"] == {"a": [1, DIMENSIONS], "b c": [1, DIMENSIONS]}
    assert body["request_id"].startswith("pooling-")
    assert body["created_at"] > 1_700_000_000
    assert engine.streams[0].prompt == [CLS, A, SEP]
    named, _ = await ask(["a"], task=None)
    assert named.json()["data"] == {"a": [1, DIMENSIONS]}, "data alone says that it is for the plugin"


async def test_a_plugin_may_want_other_numbers_and_give_token_ids() -> None:
    texts, _ = await ask(["a b", "c"], Tokens())
    assert texts.json()["data"] == [4, 3]
    ids, engine = await ask([[A, A], [A]], Tokens())
    assert ids.json()["data"] == [2, 1]
    assert engine.streams[0].prompt == [A, A]


@pytest.mark.parametrize(
    ("data", "status", "said"),
    [
        ({"a": 1}, 400, "`data`: a list of names is expected"),
        (["a " * 40], 400, "`data` has"),
        ([], 200, ""),
        ([""], 200, ""),
        ([[]], 400, "`data` must hold at least one token"),
        ([[10_000]], 400, "`data[0]`: token id 10000 is outside"),
        (["a"] * 2049, 400, "`data`"),
        (["break"], 500, "The server's plugin failed"),
        (["a", [A]], 500, "The server's plugin failed"),
        ([None], 500, "The server's plugin failed"),
        (["z"], 500, "The server's plugin failed"),
    ],
)
async def test_what_goes_wrong_is_told_and_no_more_than_that(data: Any, status: int, said: str) -> None:
    answer, engine = await ask(data)
    assert answer.status_code == status, answer.text
    assert said in answer.text
    assert "secret" not in answer.text
    assert engine.live == 0


async def test_data_without_a_plugin_and_a_plugin_without_data_are_refused() -> None:
    engine = FakePooler()
    none = await post(engine, "/pooling", {"task": "plugin", "data": 1})
    assert (none.status_code, none.json()["error"]["param"]) == (400, "task")
    for body, field in (
        ({"task": "plugin"}, "data"),
        ({"task": "plugin", "data": [], "input": "a"}, "input"),
        ({"task": "embed", "data": [], "input": "a"}, "data"),
    ):
        refused = await post(engine, "/pooling", body, plugin=Places())
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)


def install(folder: Path, points: str) -> None:
    (folder / "rooms").mkdir()
    (folder / "rooms" / "__init__.py").write_text(
        textwrap.dedent(
            """
            class Rooms:
                task = None
                def prompts(self, data): return []
                def answer(self, data, vectors): return None

            class Half:
                task = None

            class Broken:
                def __init__(self): raise OSError("no key")
            """
        )
    )
    about = folder / "rooms-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: rooms\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[stentor.pooling_plugins]\n{points}\n")


def test_a_plugin_is_an_entry_point_of_an_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "rooms = rooms:Rooms\nhalf = rooms:Half\nbroken = rooms:Broken\ngone = rooms:Gone")
    monkeypatch.syspath_prepend(tmp_path)
    assert list(open_plugin("rooms").prompts({})) == []
    for name, said in (
        ("attic", "no installed package offers it .* there are: broken, gone, half, rooms"),
        ("half", "must have a task, prompts"),
        ("broken", "cannot be made: OSError: no key"),
        ("gone", "cannot be made: AttributeError"),
    ):
        with pytest.raises(CheckpointError, match=said):
            open_plugin(name)
