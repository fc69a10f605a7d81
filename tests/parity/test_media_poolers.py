"""Models that make vectors of pictures, beside transformers' whole models in float32."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from stentor.engine.loading.kind import kind_of
from stentor.protocols.ipc.pooling import Pooling
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.parity.pictures import Kind, Picture, Prompt, prompt_of, reference_states
from stentor.tests.parity.published_names import as_qwen3_asr
from stentor.tests.parity.seeing import CONFIGS, KINDS, MAKERS
from stentor.tests.support.vision_models import FAMILIES, randomised, token

library: Any = transformers  # whose types know no labels

CLOSE = 1e-4
LAST = Pooling("embed", last=True)
NOTHING = SamplingParams(max_tokens=0)
EMBEDDERS = ("qwen3_vl", "qwen2_vl", "gemma3")
"""m-rope with features behind layers, m-rope alone, pictures that see themselves whole."""


class Pooler:
    """A tiny model on disk, its like in transformers, and our engine over it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.reference = {**FAMILIES, **MAKERS}[name](folder)
        self.kind: Kind = KINDS[name]
        config = model_config(folder, max_model_len=256, kv_cache_memory=8 << 20, is_pooling=True)
        self.engine = LocalEngine(config)

    def picture(self, seed: int, size: int = 0) -> Picture:
        return self.kind.draw(torch.Generator().manual_seed(seed), size)

    def prompt(self, *parts: list[int] | Picture) -> Prompt:
        return prompt_of(self.kind, *parts)

    def ask(self, prompt: Prompt, pooling: Pooling = LAST) -> int:
        return self.engine.submit(prompt.tokens, NOTHING, media=prompt.media, pooling=pooling)

    def found(self, rid: int) -> Any:
        end = self.engine.outcomes[rid, 0].finished
        assert end is not None
        assert end.reason == "stop", end.message
        pooled = self.engine.prompts[rid].pooled
        assert pooled is not None
        return np.frombuffer(pooled.data, "<f4").reshape(pooled.rows, pooled.columns)

    def expected(self, prompt: Prompt) -> torch.Tensor:
        """transformers' hidden states of the prompt behind the last norm [tokens, hidden]."""
        return reference_states(self.reference, self.kind, prompt)


def close(found: Any, expected: torch.Tensor) -> None:
    np.testing.assert_allclose(found, expected.numpy(), rtol=CLOSE, atol=CLOSE)


@pytest.fixture(scope="module", params=EMBEDDERS)
def model(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Pooler:
    return Pooler(request.param, tmp_path_factory.mktemp(request.param))


def text(count: int, first: int = 40) -> list[int]:
    return [first + number % 150 for number in range(count)]


def test_vectors_of_texts_and_pictures_are_those_of_transformers(model: Pooler) -> None:
    a, b = model.picture(1), model.picture(2, 1)
    prompts = [
        model.prompt(text(9)),
        model.prompt(text(5), a, text(7)),
        model.prompt(a, text(3), b, a, text(20, 70)),
        model.prompt(text(5), b),
    ]
    rids = [model.ask(prompt) for prompt in prompts]
    model.engine.run(check=True)
    for rid, prompt in zip(rids, prompts, strict=True):
        last = model.expected(prompt)[-1:]
        close(model.found(rid), last / last.norm())


def test_each_token_of_a_picture_has_its_vector(model: Pooler) -> None:
    prompt = model.prompt(text(5), model.picture(1), text(7))
    rid = model.ask(prompt, Pooling("token_embed"))
    model.engine.run(check=True)
    close(model.found(rid), model.expected(prompt))


def test_a_vector_is_cut_and_normalised_again(model: Pooler) -> None:
    prompt = model.prompt(text(5), model.picture(1))
    rid = model.ask(prompt, Pooling("embed", last=True, dimensions=8))
    model.engine.run(check=True)
    first = model.expected(prompt)[-1:, :8]
    close(model.found(rid), first / first.norm())


def test_prompts_that_are_cut_and_that_lose_their_worker_give_the_same(model: Pooler) -> None:
    engine = model.engine
    whole = max(len(model.picture(seed, seed % 2).tokens) for seed in range(4)) + 3
    engine.restart(engine.ready.num_blocks, max_num_batched_tokens=whole)
    prompts = [
        model.prompt(text(10, 50 + n), model.picture(n, n % 2), text(5), model.picture(n + 1, (n + 1) % 2), text(9))
        for n in range(2)
    ]
    rids = [model.ask(prompt) for prompt in prompts]
    engine.run(check=True, dies=lambda: engine.steps == 2 and not engine.deaths)
    for rid, prompt in zip(rids, prompts, strict=True):
        last = model.expected(prompt)[-1:]
        close(model.found(rid), last / last.norm())


def test_a_picture_that_comes_again_is_found_with_what_stands_before_it(model: Pooler) -> None:
    model.engine.restart(model.engine.ready.num_blocks)
    same, other = model.picture(5), model.picture(6)
    cached, starts = [], []
    for prompt in (model.prompt(text(12), picture, text(40)) for picture in (same, same, other)):
        starts.append(prompt.media[0].start)
        rid = model.ask(prompt)
        model.engine.run(check=True)
        cached.append(model.engine.prompts[rid].cached_tokens)
        last = model.expected(prompt)[-1:]
        close(model.found(rid), last / last.norm())
    assert cached[0] == 0
    assert cached[1] == 12 + len(same.tokens) + 40 - 1
    assert cached[2] == starts[2], "what stands before the other picture"


TIMES = 11
"""Classes of a tiny aligner."""
MARK = token("[INST]")


def aligner(folder: Path, *, published: bool) -> Any:
    """A tiny Qwen3-ForcedAligner, written as by transformers or as its makers do, and transformers' like."""
    config = CONFIGS["qwen3_asr"]()
    config.num_labels, config.timestamp_token_id = TIMES, MARK
    theirs = randomised("qwen3_aligner", lambda: library.Qwen3ASRForTokenClassification(config))
    theirs.save_pretrained(folder)
    if published:
        as_qwen3_asr(folder, TIMES)
    return theirs


@pytest.mark.parametrize("published", [False, True])
def test_the_times_of_words_are_scored_as_by_transformers(published: bool, tmp_path: Path) -> None:
    theirs, kind = aligner(tmp_path, published=published), KINDS["qwen3_asr"]
    assert kind_of(tmp_path) == "embedding"
    engine = LocalEngine(model_config(tmp_path, max_model_len=256, kv_cache_memory=8 << 20, is_pooling=True))
    sounds = [kind.draw(torch.Generator().manual_seed(seed), 0) for seed in (1, 2)]
    prompts = [
        prompt_of(kind, sounds[0], [*text(3), MARK, MARK, *text(2, 70), MARK, MARK]),
        prompt_of(kind, [50], sounds[1], [60, MARK]),
    ]
    wanted = Pooling("token_classify", activate=False)
    rids = [engine.submit(each.tokens, NOTHING, media=each.media, pooling=wanted) for each in prompts]
    engine.run(check=True)
    for rid, prompt, count in zip(rids, prompts, (4, 1), strict=True):
        pooled = engine.prompts[rid].pooled
        assert pooled is not None
        assert (pooled.rows, pooled.columns) == (count, TIMES)
        with torch.inference_mode():
            sound = kind.merge([each.tensors for each in prompt.pictures])
            logits = theirs(input_ids=torch.tensor([prompt.tokens]), **sound).logits[0]
        expected = logits[torch.tensor(prompt.tokens) == MARK]
        close(np.frombuffer(pooled.data, "<f4").reshape(pooled.rows, pooled.columns), expected)
