"""An answer of the real server on an emulated processor beside that of this one: the same tokens."""

import json
import sys
import time
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
import transformers

from stentor.engine.loading.hub import resolve_model
from stentor.loadtest.server_process import ServerProcess

SECONDS: Final = 1800.0
"""That an emulated server may take to start, and to answer."""
BODY: Final = {
    "model": "made-up",
    "messages": [{"role": "user", "content": "Say something."}],
    "max_tokens": 12,
    "temperature": 0,
    "logprobs": True,
    "return_token_ids": True,
}
CLOSE: Final = 1e-3
"""How far logprobs may lie apart: sums have another order."""


def make_model(folder: Path) -> list[str]:
    """Writes a checkpoint of random weights; gives the arguments that serve it."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=49_152,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,
        tie_word_embeddings=True,
        eos_token_id=2,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    sizes = ("--dtype", "float32", "--kv-cache-memory", "8MiB", "--max-model-len", "256", "--step-timeout", "0")
    return [str(folder), "--tokenizer", str(resolve_model()), "--served-model-name", "made-up", *sizes]


def ask(arguments: list[str], python: Path) -> dict[str, Any]:
    """The first choice of the answer of a server that runs on this Python."""
    with ServerProcess(arguments, python=python, start_seconds=SECONDS) as server:
        print(f"{python} serves after {server.seconds_to_ready:.0f} s", flush=True)
        request = urllib.request.Request(
            f"http://127.0.0.1:{server.port}/v1/chat/completions",
            json.dumps(BODY).encode(),
            {"content-type": "application/json"},
        )
        began = time.perf_counter()
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            choice: dict[str, Any] = json.load(answer)["choices"][0]
        print(f"{python} answers after {time.perf_counter() - began:.1f} s: {choice['token_ids']}", flush=True)
        return choice


def compare(python: Path) -> int:
    """An exit code: 0 where a server on ``python`` gives the tokens that one on this Python gives."""
    with TemporaryDirectory() as folder:
        arguments = make_model(Path(folder))
        here, there = (ask(arguments, each) for each in (Path(sys.executable), python))
    apart = max(
        abs(mine["logprob"] - theirs["logprob"])
        for mine, theirs in zip(here["logprobs"]["content"], there["logprobs"]["content"], strict=True)
    )
    same = here["token_ids"] == there["token_ids"] and apart < CLOSE
    print(f"the answers are {'the same' if same else 'different'}; logprobs are up to {apart:.1g} apart")
    return 0 if same else 1
