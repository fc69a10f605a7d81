"""Servers that can be measured: each, the weights it serves, how it is started, and how a request is put to it.

Every server is started as someone who wants throughput from all cores would start it, and with room for the same
number of tokens in its KV cache: as many requests as are put at a time, and as long as the longest of them.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..client import STREAMED
from ..server_process import HOST
from .places import installed, llama_binary, script
from .prompts import Prompt
from .weights import Form

MODEL: Final = "peer"
"""The name that requests use, where a server lets one choose it."""
OFFLINE: Final = {"HF_HUB_OFFLINE": "1"}


class Room(NamedTuple):
    """What a server must have room for."""

    slots: int
    """The most requests at a time."""
    tokens: int = 2304
    """The most of each, a multiple of 256: whole blocks of any server."""


class Launch(NamedTuple):
    """A server's command and what is added to its environment."""

    command: list[str]
    environment: dict[str, str]


class Side(NamedTuple):
    """One column of the table."""

    name: str
    peer: str
    """Whose it is: ``stentor``, or a peer's name."""
    form: Form
    bits: str
    """What is compared with what: bf16 with bf16, q4_0 with q4_0."""
    launch: Callable[[Path, int, Room], Launch]
    """(weights, port, room) → how it is started."""
    body: Callable[[Path, Prompt, int], dict[str, Any]]
    """(weights, prompt, tokens to put out) → the request."""
    parallel: bool = True
    """False for one that serves a request at a time: many streams would only wait."""

    @property
    def missing(self) -> str | None:
        """Why it cannot be measured here; None where it can."""
        if self.peer == "stentor" or installed(self.peer) is not None:
            return None
        return f"{self.peer} is not installed; run: make peers ARGS={self.peer}"


def cores() -> list[int]:
    """Those this process may use."""
    return sorted(os.sched_getaffinity(0))


def has_tiles() -> bool:
    """Whether the processor has Intel's AMX."""
    return "amx_tile" in Path("/proc/cpuinfo").read_text().split()


def _at(port: int) -> list[str]:
    return ["--host", HOST, "--port", str(port)]


def _stentor(weights: Path, port: int, room: Room) -> Launch:
    del room  # its cache grows with what it serves
    command = [sys.executable, "-P", "-m", "stentor.server.main.cli", "serve", str(weights)]
    return Launch([*command, "--dtype", "bfloat16", "--served-model-name", MODEL, *_at(port)], {})


def _llama_cpp(weights: Path, port: int, room: Room) -> Launch:
    """On a processor with AMX without its repacked weights: their products end it there by an illegal instruction."""
    repacked = ["--no-repack"] if has_tiles() else []
    sizes = f"--threads {len(cores())} --parallel {room.slots} --ctx-size {room.slots * room.tokens}".split()
    command = [str(llama_binary("llama-server")), "--model", str(weights), "--alias", MODEL, *sizes]
    return Launch([*command, *repacked, "--flash-attn", "on", "--cont-batching", *_at(port)], OFFLINE)


def _vllm(weights: Path, port: int, room: Room) -> Launch:
    del room  # it has gigabytes, not requests
    command = [str(script("vllm", "vllm")), "serve", str(weights), "--served-model-name", MODEL]
    environment = {
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores())),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",  # it would otherwise leave one core out
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return Launch([*command, "--dtype", "bfloat16", "--max-model-len", "8192", *_at(port)], OFFLINE | environment)


def _transformers(weights: Path, port: int, room: Room) -> Launch:
    del room  # it serves one
    command = [str(script("transformers", "transformers")), "serve", str(weights)]
    return Launch([*command, "--dtype", "bfloat16", "--device", "cpu", *_at(port)], OFFLINE)


def _transformers_batching(weights: Path, port: int, room: Room) -> Launch:
    blocks = room.slots * room.tokens // 256  # its pages hold 256 tokens
    command, environment = _transformers(weights, port, room)
    return Launch([*command, "--continuous-batching", "--cb-num-blocks", str(blocks)], environment)


def _openai(weights: Path, prompt: Prompt, tokens: int) -> dict[str, Any]:
    del weights
    return {
        "model": MODEL,
        "prompt": prompt.ids,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        **STREAMED,
    }


def _transformers_body(weights: Path, prompt: Prompt, tokens: int) -> dict[str, Any]:
    """It takes text alone, and knows no ``ignore_eos``: an end token that no model draws does the same."""
    generation = {"do_sample": False, "eos_token_id": -1}
    return {
        "model": str(weights),
        "prompt": prompt.text,
        "max_tokens": tokens,
        "stream": True,
        "generation_config": json.dumps(generation),
    }


_ALL: Final = (
    Side("stentor-bf16", "stentor", "hf", "bf16", _stentor, _openai),
    Side("stentor-q4_0", "stentor", "q4_0", "q4_0", _stentor, _openai),
    Side("stentor-q4_1", "stentor", "q4_1", "q4_1", _stentor, _openai),
    Side("stentor-q8_0", "stentor", "q8_0", "q8_0", _stentor, _openai),
    Side("llama.cpp-bf16", "llama.cpp", "bf16", "bf16", _llama_cpp, _openai),
    Side("llama.cpp-q4_0", "llama.cpp", "q4_0", "q4_0", _llama_cpp, _openai),
    Side("llama.cpp-q4_1", "llama.cpp", "q4_1", "q4_1", _llama_cpp, _openai),
    Side("llama.cpp-q8_0", "llama.cpp", "q8_0", "q8_0", _llama_cpp, _openai),
    Side("vllm-bf16", "vllm", "hf", "bf16", _vllm, _openai),
    Side("transformers-bf16", "transformers", "hf", "bf16", _transformers, _transformers_body, parallel=False),
    Side("transformers-batching", "transformers", "hf", "bf16", _transformers_batching, _transformers_body),
)
SIDES: Final[Mapping[str, Side]] = {side.name: side for side in _ALL}
"""By name, in the order of the table's columns."""
