"""The sampler's workloads for the tuner: a step of a mixed batch, and log-probabilities."""

from collections.abc import Callable
from functools import partial

import torch

from ..tuning import Config, Tunable
from .tables import SamplerTables, pack_params
from .triton_logprobs import LOGPROBS, logprobs
from .triton_step import BRACKET, FINISH, SCAN, step_

VOCABULARY = 128256
TOP = 20
_ROWS = {"few": 1, "many": 256}
_CASES: tuple[dict[str, float], ...] = (
    {},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"top_k": 50, "top_p": 0.95},
    {"min_p": 0.05},
)


def tunables() -> list[Tunable]:
    scan = [
        Config.of(BLOCK=block, GROUP=128, num_warps=warps, fuse_multiply_add=False)
        for block in (1024, 2048, 4096, 8192)
        for warps in (4, 8, 16)
    ]
    bracket = [
        Config.of(SAMPLES=samples, ROOM=16384, num_warps=warps, fuse_multiply_add=False)
        for samples in (2048, 4096)
        for warps in (4, 8, 16)
    ]
    finish = [
        Config.of(CHUNK=chunk, PART=part, num_warps=warps, fuse_multiply_add=False)
        for chunk in (1024, 2048)
        for part in (512, 1024)
        for warps in (4, 8, 16)
    ]
    sums = [Config.of(BLOCK=block, num_warps=warps) for block in (2048, 4096, 8192) for warps in (4, 8, 16)]
    found = [
        Tunable(operation, key, candidates, partial(_step, rows))
        for operation, candidates in ((SCAN, scan), (BRACKET, bracket), (FINISH, finish))
        for key, rows in _ROWS.items()
    ]
    return [*found, Tunable(LOGPROBS, "any", sums, _logprobs)]


def _logits(rows: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(0)
    return torch.randn((rows, VOCABULARY), device=device, generator=generator) * 3


def _step(rows: int, device: torch.device) -> Callable[[], object]:
    logits, slots = _logits(rows, device), torch.arange(rows, device=device)
    tables = SamplerTables.empty(rows, VOCABULARY, device, penalties=False)
    for slot in range(rows):
        case = _CASES[(slot + 2) % len(_CASES)]
        packed = pack_params(
            seed=slot,
            temperature=case.get("temperature", 1.0),
            top_k=int(case.get("top_k", 0)),
            top_p=case.get("top_p", 1.0),
            min_p=case.get("min_p", 0.0),
        )
        tables.set_params(slot, packed)
    out = torch.empty(rows, dtype=torch.int64, device=device)

    def call() -> torch.Tensor:
        step_(logits, slots, tables, out)
        return out

    return call


def _logprobs(device: torch.device) -> Callable[[], object]:
    logits, rows = _logits(256, device), torch.arange(256, device=device)
    return lambda: logprobs(logits, rows, rows, TOP, rows.new_empty((256, 0)))
