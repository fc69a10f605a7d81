"""The demo model in float32: greedy tokens and logits against transformers on the same weights."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.parity.paged import PagedDecoder
from stentor.tests.support.gguf_reference import read_once

NEAR_TIE = 1e-3

CHATS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain photosynthesis to a child.",
    "List five prime numbers above 50.",
    "Translate 'good morning' into Spanish, German and Japanese.",
    "Why is the sky blue?",
    "Give me a recipe for pancakes with exact amounts.",
    "Who wrote 'Pride and Prejudice', and when?",
    "2+2*10 = ?",
    "Tell me a joke about programmers 😀",
]
TEXTS = [
    "def fibonacci(n):\n    ",
    "Once upon a time",
    "The quick brown fox jumps over the lazy dog. " * 12,
    "SELECT name, age FROM users WHERE",
    "Der schnelle braune Fuchs",
    "日本の首都は",
    "1 2 3 4 5 6 7 8 9",
    "\n\n",
    "import torch\nimport numpy as np\n\nclass Model(torch.nn.Module):\n",
    "a",
]


@pytest.fixture(scope="module", autouse=True)
def _read_once() -> Iterator[None]:
    with read_once():
        yield


@pytest.fixture(scope="module")
def reference(demo_gguf: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        demo_gguf.parent, gguf_file=demo_gguf.name, dtype=torch.float32
    ).eval()


@pytest.fixture(scope="module")
def prompts(demo_gguf: Path) -> list[list[int]]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(demo_gguf.parent, gguf_file=demo_gguf.name)
    chats = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in CHATS
    ]
    return [*chats, *(tokenizer(text)["input_ids"] for text in TEXTS)]


@torch.inference_mode()
@pytest.mark.parametrize(("every", "count"), [(5, 12), pytest.param(1, 32, marks=pytest.mark.proof)])
def test_greedy_tokens_equal_those_of_transformers(
    demo_gguf: Path, reference: Any, prompts: list[list[int]], every: int, count: int
) -> None:
    """One teacher-forced pass of transformers over our tokens says at every position what it would have drawn."""
    engine = LocalEngine(model_config(demo_gguf, max_model_len=1024))
    params = SamplingParams(max_tokens=count, temperature=0.0)
    prompts = prompts[::every]
    rids = [engine.submit(prompt, params) for prompt in prompts]
    engine.run()
    compared = 0
    for prompt, rid in zip(prompts, rids, strict=True):
        tokens = engine.outcomes[rid, 0].tokens
        assert len(tokens) == count
        logits = reference(torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :]
        for position, (token, row) in enumerate(zip(tokens, logits, strict=True)):
            best = row.topk(2)
            if token == best.indices[0].item():
                compared += 1
                continue
            gap = (best.values[0] - row[token]).item()
            print(f"prompt {prompt[:8]}… position {position}: {token}, transformers {best.indices[0]}, gap {gap:.2e}")
            assert gap <= NEAR_TIE
    assert compared >= 0.99 * count * len(prompts)


@torch.inference_mode()
def test_logits_agree_with_transformers(demo_gguf: Path, reference: Any, prompts: list[list[int]]) -> None:
    ours = PagedDecoder(demo_gguf, max_model_len=512)
    assert open_checkpoint(demo_gguf, "auto").decoder.num_layers == 30
    for prompt in prompts[:3]:
        ours.add(0, prompt)
        (logits,) = ours.run((0, 0, len(prompt)))
        torch.testing.assert_close(logits, reference(torch.tensor([prompt])).logits[0], rtol=0, atol=1e-3)
