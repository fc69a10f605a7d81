"""transformers at its best on one GPU: static cache, compiled forward, scaled dot-product attention."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, StaticCache

_TIMED = 5


def measure_transformers(
    folder: Path, device: torch.device, decode: Sequence[int], prefill: Sequence[int], steps: int, prompt: int
) -> Iterator[tuple[str, int, float]]:
    """Yields (work, tokens of a step, milliseconds of a step) under the names that ours go by.

    A prefill is timed compiled and not, and the faster of the two is told.
    """
    config = AutoConfig.from_pretrained(folder)
    with torch.device(device):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    model.eval()
    with torch.inference_mode():
        for batch in decode:
            yield f"decode of {batch}", batch, _decode(model, config, device, batch, steps, prompt)
        for length in prefill:
            yield f"prefill of {length}", length, _prefill(model, config, device, length)


def _decode(model: Any, config: Any, device: torch.device, batch: int, steps: int, prompt: int) -> float:
    cache = StaticCache(config=config, max_cache_len=prompt + steps)
    ids = torch.randint(0, config.vocab_size, (batch, prompt), device=device)
    forward: Any = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True, dynamic=False)
    token = ids[:, :1].clone()
    position = torch.tensor([prompt], device=device)

    def run() -> None:
        for _ in range(steps):
            logits = forward(token, past_key_values=cache, cache_position=position).logits
            token.copy_(logits[:, -1:].argmax(-1))
            position.add_(1)

    times = []
    for _ in range(1 + _TIMED):  # the first one compiles
        cache.reset()
        model(ids, past_key_values=cache, cache_position=torch.arange(prompt, device=device), logits_to_keep=1)
        position.fill_(prompt)
        times.append(_milliseconds(run, device) / steps)
    torch.compiler.reset()
    return statistics.median(times[1:])


def _prefill(model: Any, config: Any, device: torch.device, length: int) -> float:
    ids = torch.randint(0, config.vocab_size, (1, length), device=device)
    positions = torch.arange(length, device=device)

    def median(forward: Any) -> float:
        def call() -> None:
            cache = StaticCache(config=config, max_cache_len=length + 16)
            forward(ids, past_key_values=cache, cache_position=positions, logits_to_keep=1)

        return statistics.median([_milliseconds(call, device) for _ in range(2 + _TIMED)][2:])

    compiled: Any = torch.compile(model.forward, dynamic=False)
    best = min(median(model), median(compiled))
    torch.compiler.reset()
    return best


def _milliseconds(call: Callable[[], object], device: torch.device) -> float:
    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    began = now()
    call()
    return 1e3 * (now() - began)
