"""The demo model against transformers on the same weights: their values, greedy tokens, logits and perplexity."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.weights import iterate_weights
from stentor.loadtest.quality.command import check, corpus, make_cases, make_works
from stentor.loadtest.quality.reference import Reference
from stentor.protocols.ipc.config import WorkerConfig
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.server.text.tokenizers.loading import load_tokenizer
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
def loaded(demo_gguf: Path) -> Reference:
    return Reference(open_checkpoint(demo_gguf))


@pytest.fixture(scope="module")
def reference(loaded: Reference) -> Any:
    """transformers' model in float32."""
    return loaded._model


@pytest.fixture(scope="module")
def engine(demo_gguf: Path) -> LocalEngine:
    return LocalEngine(model_config(demo_gguf, max_model_len=1024, kv_cache_memory=256 << 20))


@pytest.fixture(scope="module")
def prompts(demo_gguf: Path) -> list[list[int]]:
    chats = [f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n" for text in CHATS]
    return load_tokenizer(demo_gguf).encode_batch([*chats, *TEXTS])


@pytest.mark.proof  # blocks of each type: tests/engine/loading/test_weights.py; `greedy` reads these
def test_weights_are_those_that_transformers_reads(demo_gguf: Path, reference: Any) -> None:
    theirs = reference.state_dict()
    names = set()
    for name, tensor in iterate_weights(open_checkpoint(demo_gguf), torch.float32):
        assert torch.equal(tensor, theirs[name]), name
        names.add(name)
    assert len(names) == 272
    assert names == theirs.keys() - {"lm_head.weight"}, "which is that of the embedding"


@torch.inference_mode()
@pytest.mark.parametrize(("every", "count"), [(10, 12), pytest.param(1, 32, marks=pytest.mark.proof)])
def test_greedy_tokens_equal_those_of_transformers(
    engine: LocalEngine, reference: Any, prompts: list[list[int]], every: int, count: int
) -> None:
    """One teacher-forced pass of transformers over our tokens says at every position what it would have drawn."""
    engine.restart(engine.ready.num_blocks)
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


@pytest.mark.proof
@torch.inference_mode()
def test_logits_agree_with_transformers(demo_gguf: Path, reference: Any, prompts: list[list[int]]) -> None:
    ours = PagedDecoder(demo_gguf, max_model_len=512)
    assert len(open_checkpoint(demo_gguf, "auto").decoder.layers) == 30
    for prompt in prompts[:3]:
        ours.add(0, prompt)
        (logits,) = ours.run((0, 0, len(prompt)))
        torch.testing.assert_close(logits, reference(torch.tensor([prompt])).logits[0], rtol=0, atol=1e-3)


def test_the_demo_model_as_it_is_served_keeps_its_perplexity(
    demo_gguf: Path, loaded: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``make quality`` in small: few tokens, so that the limit is wider than there."""
    monkeypatch.setattr("stentor.loadtest.quality.command.DECODE_WINDOW", 64)
    checkpoint = open_checkpoint(demo_gguf)
    tokens = load_tokenizer(demo_gguf).encode(corpus()[:2000])[:128]
    served = WorkerConfig(str(demo_gguf), device="cpu", max_model_len=512, kv_cache_memory=64 << 20, max_num_seqs=4)
    works = make_works(tokens, [64], [3])  # both of the same windows: transformers, which is slow, computes them once
    assert [(work.name, len(work.windows)) for work in works] == [("prefill of 64", 2), ("decode of 2", 2)]
    assert works[0].windows == works[1].windows
    with make_cases(checkpoint, loaded, served, ["served", "bfloat16"]) as (as_stored, expanded):
        assert as_stored.config == served
        assert expanded.config.dtype == "bfloat16"
        plain = open_checkpoint(Path(expanded.config.model))
        assert (plain.format, plain.dtype, plain.config) == ("safetensors", "float32", checkpoint.config)
        verdicts = check([as_stored], works, loaded, lambda text: None)
    assert not plain.folder.exists(), "the expanded weights are left behind"
    for verdict in verdicts:
        print(verdict)
        assert 5 < verdict.agreement.reference_perplexity < 60, "the text was not read as text"
        assert verdict.agreement.within(0.03)
        assert verdict.agreement.divergence_mean < 0.01
