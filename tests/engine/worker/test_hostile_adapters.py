"""Files of adapters that somebody made up: each is refused in a line that says what is wrong, and nothing is kept."""

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from stentor.engine.layers.linear.adapters import AdapterPlaces
from stentor.engine.worker.adapters.store import AdapterStore
from stentor.protocols.ipc.adapters import AdapterRef
from stentor.tests.examples import examples

PARTS = ("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj")
INPUTS, OUTPUTS, RANK = 8, 6, 2
CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": RANK, "lora_alpha": 4, "bias": "none", "rank_pattern": {}}
NUMBERS = (0, -1, 1, 2, 3, 0.5, 2**31, 2**64, 10**400, -(10**400), 1e308, float("inf"), float("nan"), True, "2", None)
STRANGE: tuple[Any, ...] = (*NUMBERS, [], {}, [[]], {"q_proj": -1}, {"q_proj": 10**400}, "x" * 70_000, ["a"] * 3000)


def tensors() -> dict[str, torch.Tensor]:
    found = {}
    for part in PARTS:
        found[f"base_model.model.{part}.lora_A.weight"] = torch.ones(RANK, INPUTS)
        found[f"base_model.model.{part}.lora_B.weight"] = torch.ones(OUTPUTS, RANK)
    return found


class Served:
    """A store, and a sound adapter that is in a slot of it all the while."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places = AdapterPlaces()
        self._places.add(dict.fromkeys(PARTS, OUTPUTS), INPUTS)
        self._store = AdapterStore(self._places, RANK, torch.device("cpu"))
        self._next = 0
        assert not self.load(json.dumps(CONFIG), save(tensors()))
        self._store.put([(0, 0)])
        self._held = self._linear.get(0)

    @property
    def _linear(self) -> Any:
        return next(iter(self._places.by_name.values())).linears[0]

    def load(self, config: str, weights: bytes) -> str:
        """What is told of it; nothing where it was loaded."""
        number, self._next = self._next, self._next + 1
        path = self._folder / str(number)
        path.mkdir()
        (path / "adapter_config.json").write_text(config)
        (path / "adapter_model.safetensors").write_bytes(weights)
        self._store.load(AdapterRef(number, str(number), str(path)))
        (loaded,) = self._store.take(None)
        assert loaded.number == number
        assert not loaded.missing
        return loaded.error

    def refuses(self, config: str, weights: bytes) -> str:
        """The line. What was held is held, and nothing besides."""
        error = self.load(config, weights)
        assert error
        assert not error.startswith("it could not be read"), error
        assert len(error) <= 501
        assert "\n" not in error
        self.check()
        return error

    def check(self) -> None:
        assert self._store.numbers == [0]
        assert self._linear.get(0) is self._held


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path)


def stored(header: object, data: bytes = bytes(64)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str = "F32", shape: object = (2, 8), offsets: object = (0, 64)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


NAME = f"base_model.model.{PARTS[0]}.lora_A.weight"
OTHER = NAME.replace("lora_A", "lora_B")
HEADERS: dict[str, bytes] = {
    "none": b"",
    "longer than the file": struct.pack("<Q", 1 << 62) + b"{}",
    "no JSON": stored(b"\xff\xfe{"),
    "nested": stored(b"[" * 100_000),
    "a list": stored([]),
    "empty": stored({}),
    "no entry": stored({NAME: 5}),
    "negative offsets": stored({NAME: entry(offsets=(-8, 64))}),
    "turned offsets": stored({NAME: entry(offsets=(64, 0))}),
    "behind the end": stored({NAME: entry(offsets=(0, 1 << 60))}),
    "numbers without end": stored({NAME: entry(offsets=(0, 10**300))}),
    "negative shape": stored({NAME: entry(shape=(-2, -8)), OTHER: entry()}),
    "large shape": stored({NAME: entry(shape=(2**40, 2**40)), OTHER: entry()}),
    "many dimensions": stored({NAME: entry(shape=[1] * 100_000), OTHER: entry()}),
    "no dimensions": stored({NAME: entry(shape=[]), OTHER: entry()}),
    "whole numbers": stored({NAME: entry("I64"), OTHER: entry(shape=(6, 2), offsets=(0, 48))}),
    "shorter than its shape": stored({NAME: entry(offsets=(0, 8)), OTHER: entry(shape=(6, 2), offsets=(0, 48))}),
    "a long name": stored({"a" * 200_000: entry()}),
    "half a pair": stored({NAME: entry()}),
}


@pytest.mark.parametrize("what", HEADERS)
def test_a_header_that_lies_is_refused(what: str, served: Served) -> None:
    served.refuses(json.dumps(CONFIG), HEADERS[what])


def _rank_one_more(found: dict[str, torch.Tensor]) -> None:
    found[NAME] = torch.ones(RANK + 1, INPUTS)


def _no_number(found: dict[str, torch.Tensor]) -> None:
    found[NAME][1, 3] = float("nan")


def _endless(found: dict[str, torch.Tensor]) -> None:
    found[OTHER][0, 0] = float("-inf")


def _twice(found: dict[str, torch.Tensor]) -> None:
    for name in (NAME, OTHER):
        found[name.replace(".model.model.", ".model.")] = found[name].clone()


def _another_part(found: dict[str, torch.Tensor]) -> None:
    for name in (NAME, OTHER):
        found[name.replace("layers.0", "layers.99999999999999999999")] = found[name].clone()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_rank_one_more, "lora_A.weight is"),
        (_no_number, f"lora_A of {PARTS[0]} has numbers"),
        (_endless, f"lora_B of {PARTS[0]} has numbers"),
        (_twice, "is changed twice"),
        (_another_part, "which this model has not"),
    ],
)
def test_matrices_that_cannot_be_added_are_refused_by_name(
    change: Callable[[dict[str, torch.Tensor]], None], says: str, served: Served
) -> None:
    found = tensors()
    change(found)
    assert says in served.refuses(json.dumps(CONFIG), save(found))


BEYOND: tuple[Any, ...] = (10**400, 1e300, float("nan"), "1", None, [1])
VALUES = [("r", value) for value in (0, -3, *BEYOND)] + [("lora_alpha", value) for value in BEYOND]
"""A factor of 0 or below turns an adapter off, or around."""


@pytest.mark.parametrize(("field", "value"), VALUES, ids=lambda value: str(value)[:9])
def test_ranks_and_factors_beyond_reason_are_refused_by_name(field: str, value: Any, served: Served) -> None:
    said = served.refuses(json.dumps({**CONFIG, field: value}), save(tensors()))
    assert field in said or "--max-lora-rank" in said


def test_configurations_drawn_at_random_are_read_or_refused(served: Served) -> None:
    rng, weights = random.Random(5), save(tensors())
    fields = (
        *CONFIG,
        "alpha_pattern",
        "use_rslora",
        "target_parameters",
        "peft_version",
        "modules_to_save",
        "use_dora",
    )
    refused = 0
    for _ in range(examples(60, 2000)):
        config = {**CONFIG, **{rng.choice(fields): rng.choice(STRANGE) for _ in range(rng.randint(1, 3))}}
        if error := served.load(json.dumps(config), weights):
            assert not error.startswith("it could not be read"), error
            served.check()
            refused += 1
        else:
            served._store.drop(served._next - 1)
    assert refused > 10


def test_bytes_changed_at_random_are_read_or_refused(served: Served) -> None:
    rng, config = random.Random(6), json.dumps(CONFIG)
    whole = save(tensors())
    for _ in range(examples(60, 2000)):
        changed = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        error = served.load(config, bytes(changed[: rng.choice((len(changed), rng.randrange(len(changed))))]))
        assert not error.startswith("it could not be read"), error
        if not error:
            served._store.drop(served._next - 1)
        served.check()
