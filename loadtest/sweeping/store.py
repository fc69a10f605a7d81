"""A sweep's folder: the plan it was made by, one file a run, and what they come to.

FOLDER/plan.json            what every run has in common; another plan does not go on here
FOLDER/runs/TARGET/VALUE.ROUND.json
FOLDER/sweep.json           of one target, or sweep-TARGET.json of several
FOLDER/sweep.html
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from ..record import Result, Sweep, SweepPoint, load_result, save_record
from ..report.figures import show_value
from .axis import Value

_PLAN: Final = "plan.json"


class StoreError(ValueError):
    """A folder that cannot be used; the message is one line for the operator."""


class Target(msgspec.Struct, frozen=True):
    """One server of a sweep."""

    name: str
    url: str


class Plan(msgspec.Struct, frozen=True):
    """What all runs of a folder share. Values and repeats are not in it: a sweep may be widened."""

    axis: str
    options: list[str]
    """Of ``stentor bench serve``, without secrets."""
    targets: list[Target]
    seed: str
    """How each run's seed is chosen."""


class Store:
    """One folder. Nothing is written before the first run has ended."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder
        self.plan = plan

    def open(self, restart: bool = False) -> None:
        """Makes the folder ours. Raises :class:`StoreError` where it belongs to another plan."""
        path = self.folder / _PLAN
        if restart and path.is_file():  # runs without a plan are not ours to discard
            path.unlink()
            shutil.rmtree(self.folder / "runs", ignore_errors=True)
        if path.is_file():
            self._check(path)
            return
        if (self.folder / "runs").exists():
            raise StoreError(f"{self.folder} holds runs and no {_PLAN}: name another folder by --out")
        self.folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self.plan), indent=1) + b"\n")

    def load(self, target: Target, value: Value, number: int) -> Result | None:
        """A run that has ended; None where it has not. Raises :class:`..record.RecordError` for a damaged file."""
        path = self._path(target, value, number)
        return load_result(path) if path.is_file() else None

    def save(self, target: Target, value: Value, number: int, result: Result) -> None:
        path = self._path(target, value, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_record(result, path)

    def sweep_path(self, target: Target) -> Path:
        """Where a target's sweep goes."""
        return self.folder / ("sweep.json" if len(self.plan.targets) == 1 else f"sweep-{target.name}.json")

    @property
    def page_path(self) -> Path:
        return self.folder / "sweep.html"

    def gather(
        self, target: Target, values: Sequence[Value], repeats: int, command: Sequence[str], keep_requests: bool
    ) -> Sweep:
        """The runs there are, as one sweep: a point each, so that one value has as many points as repeats."""
        points = [
            SweepPoint(value, result if keep_requests else replace(result, requests=[]))
            for value in values
            for number in range(repeats)
            if (result := self.load(target, value, number)) is not None
        ]
        began = min((point.result.started_at for point in points), default="")
        return Sweep(name=target.name, started_at=began, command=list(command), axis=self.plan.axis, points=points)

    def _path(self, target: Target, value: Value, number: int) -> Path:
        return self.folder / "runs" / quote(target.name, safe="") / f"{quote(show_value(value), safe='')}.{number}.json"

    def _check(self, path: Path) -> None:
        try:
            there = msgspec.json.decode(path.read_bytes(), type=Plan)
        except msgspec.DecodeError as error:
            raise StoreError(f"{path} is no plan of a sweep ({error}): name another folder by --out") from None
        for name in Plan.__struct_fields__:
            old, new = getattr(there, name), getattr(self.plan, name)
            if old != new:
                raise StoreError(
                    f"{self.folder} was begun by another command ({name}: {_show(old)}, now {_show(new)}): repeat that "
                    "one, name another folder by --out, or discard what it holds by --restart"
                )


def _show(value: object) -> str:
    if isinstance(value, list):
        return " ".join(f"{one.name}={one.url}" if isinstance(one, Target) else str(one) for one in value) or "none"
    return str(value)
