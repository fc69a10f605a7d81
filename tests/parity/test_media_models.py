"""Models that see: our decoder over pictures that transformers' tower has encoded, beside transformers' whole model."""

import copy
import math
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.pooling_checkpoint import open_pooling
from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.models.transformers.tower import TransformersTower
from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.setup.setup import open_family, set_up
from stentor.protocols.ipc.adapters import AdapterRef
from stentor.protocols.ipc.cache_groups import group_of
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.parity.pictures import Kind, Picture, Prompt, greedy, prompt_of, reference
from stentor.tests.parity.seeing import CONFIGS, KINDS, MAKERS
from stentor.tests.parity.tiny_adapters import merged, save_adapter
from stentor.tests.support.vision_models import FAMILIES, VOCAB

CLOSE = 1e-3
LEAST = -1e30
ANSWER = 6


class Seeing:
    """A tiny model on disk, its like in transformers, and our engine over it."""

    def __init__(self, name: str, folder: Path) -> None:
        self.reference = {**FAMILIES, **MAKERS}[name](folder)
        self.kind: Kind = KINDS[name]
        self.engine = LocalEngine(model_config(folder, max_model_len=1024, kv_cache_memory=8 << 20))

    def picture(self, seed: int, size: int = 0) -> Picture:
        return self.kind.draw(torch.Generator().manual_seed(seed), size)

    def prompt(self, *parts: list[int] | Picture) -> Prompt:
        return prompt_of(self.kind, *parts)

    def params(self, count: int = ANSWER, told: int | None = None) -> SamplingParams:
        return SamplingParams(
            max_tokens=count, temperature=0.0, banned_token_ids=self.kind.unsaid, prompt_logprobs=told
        )

    def ask(self, prompt: Prompt) -> int:
        return self.engine.submit(prompt.tokens, self.params(told=VOCAB), media=prompt.media)

    def check(self, rid: int, prompt: Prompt) -> None:
        """Distributions over the next token at each position of the prompt, and the answer."""
        expected = reference(self.reference, self.kind, prompt).log_softmax(-1)
        # tokens that no answer has: transformers has no logits of them, or the least that there is
        expected = torch.nn.functional.pad(expected, (0, VOCAB - expected.shape[1]), value=-math.inf)
        expected[expected < LEAST] = -math.inf
        found = self.engine.prompts[rid].logprobs
        assert found is not None
        for position, told in enumerate(found[1:], 1):
            assert told is not None
            ids, values = zip(*told.top, strict=True)
            had, wanted = torch.tensor(values), expected[position - 1, list(ids)]
            off = torch.where(had == wanted, 0.0, had - wanted).abs().max()
            assert off < CLOSE, f"position {position - 1} is off by {off:.2g}"
        answer = self.engine.outcomes[rid, 0]
        assert answer.tokens == greedy(self.reference, self.kind, prompt, ANSWER)


OF_EACH_KIND = (
    *("idefics3", "qwen3_vl", "qwen3_5", "gemma3", "gemma4_small", "gemma4_large"),
    *("qwen2_vl_film", "voxtral", "qwen2_5_omni"),
)
"""Text between the embeddings of a picture, m-rope with features behind layers, with recurrent states, pictures that
see themselves whole, embeddings of their own for each layer, pictures that see themselves whole in some layers; videos,
sounds, and both pictures and sounds."""


@pytest.fixture(scope="module", params=OF_EACH_KIND)
def model(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return Seeing(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module", params=[name for name in KINDS if name not in OF_EACH_KIND])
def other(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return Seeing(request.param, tmp_path_factory.mktemp(request.param))


def text(count: int, first: int = 40) -> list[int]:
    return [first + number % 150 for number in range(count)]


def check_prompts(model: Seeing) -> None:
    a, b = model.picture(1), model.picture(2, 1)
    prompts = [
        model.prompt(text(9)),
        model.prompt(text(5), a, text(7)),
        model.prompt(a, text(3), b, a, text(20, 70)),
    ]
    rids = [model.ask(prompt) for prompt in prompts]
    model.engine.run(check=True)
    for rid, prompt in zip(rids, prompts, strict=True):
        model.check(rid, prompt)


def test_no_one_and_several_pictures_are_answered_as_by_transformers(model: Seeing) -> None:
    check_prompts(model)


@pytest.mark.proof(each="other")
def test_other_families_answer_as_by_transformers(other: Seeing) -> None:
    check_prompts(other)


def check_cut(model: Seeing) -> None:
    prompt = model.prompt(text(3), model.picture(3), text(2), model.picture(4, 1), text(4))
    cross = group_of(model.engine.ready.groups, "cross")
    assert cross is not None
    longest = max(each.length for each in prompt.media) if cross.whole else 0  # which is computed in one step
    if cross.whole_prompts:
        longest = len(prompt.tokens)
    if cross.joined:
        longest = prompt.media[-1].start + prompt.media[-1].length - prompt.media[0].start
    model.engine.restart(model.engine.ready.num_blocks, max_num_batched_tokens=max(7, longest))
    rid = model.ask(prompt)
    model.engine.run(check=True)
    model.check(rid, prompt)


@pytest.mark.proof(each="model")
def test_a_prompt_that_is_cut_within_its_pictures_is_answered_alike(model: Seeing) -> None:
    check_cut(model)


@pytest.mark.proof(each="other")
def test_other_families_answer_alike_a_prompt_that_is_cut_within_its_pictures(other: Seeing) -> None:
    check_cut(other)


def check_prefixes(model: Seeing) -> None:
    model.engine.restart(model.engine.ready.num_blocks)
    same, other = model.picture(5), model.picture(6)
    params = model.params()
    asked = ((same, 40), (same, 40), (other, 40), (same, 90))
    first, again, differs, longer = (model.prompt(text(12), picture, text(40, begin)) for picture, begin in asked)
    cached = []
    for prompt in (first, again, differs, longer):
        rid = model.engine.submit(prompt.tokens, params, media=prompt.media)
        model.engine.run(check=True)
        cached.append(model.engine.prompts[rid].cached_tokens)
        assert model.engine.outcomes[rid, 0].tokens == greedy(model.reference, model.kind, prompt, ANSWER)
    assert cached[0] == 0
    if model.kind.whole_prompts or any(group.by_prompt for group in model.engine.ready.groups):
        assert not any(cached)
    elif group_of(model.engine.ready.groups, "state") is None:
        assert cached[1:] == [len(first.tokens) - 1, first.media[0].start, len(first.tokens) - 40]


@pytest.mark.proof(each="model")
def test_a_prefix_with_the_same_picture_is_reused_and_one_with_another_is_not(model: Seeing) -> None:
    check_prefixes(model)


@pytest.mark.proof(each="other")
def test_other_families_reuse_a_prefix_with_the_same_picture_and_none_with_another(other: Seeing) -> None:
    check_prefixes(other)


@pytest.mark.proof
def test_media_that_see_each_other_are_found_again_with_the_same_ones_alone(tmp_path: Path) -> None:
    model = Seeing("molmo2", tmp_path)
    first, second, third = (model.picture(number) for number in (5, 6, 7))
    begin = model.prompt(text(20), first).media[0].start
    cached, prompt = [], None
    for pictures, told in (((first, second), 40), ((first, third), 40), ((first, second), 60), ((first, second), 40)):
        prompt = model.prompt(text(20), pictures[0], text(9, told), pictures[1], text(40))
        rid = model.engine.submit(prompt.tokens, model.params(), media=prompt.media)
        model.engine.run(check=True)
        cached.append(model.engine.prompts[rid].cached_tokens)
        assert model.engine.outcomes[rid, 0].tokens == greedy(model.reference, model.kind, prompt, ANSWER)
    assert prompt is not None
    assert cached == [0, begin, begin, len(prompt.tokens) - 1]


def check_losses(model: Seeing) -> None:
    engine, more = model.engine, 9
    engine.restart(engine.ready.num_blocks)
    prompts = [
        model.prompt(text(10, 50 + number), model.picture(number), text(5), model.picture(number + 1, 1), text(9))
        for number in range(2)
    ]
    params = model.params(more)
    rids = [engine.submit(prompt.tokens, params, media=prompt.media) for prompt in prompts]
    begun = engine.steps

    def dies() -> bool:
        if engine.steps == begun + 5:
            engine.scheduler.recompute()
        return engine.steps == begun + 8 and not engine.deaths

    engine.run(check=True, dies=dies)
    assert engine.deaths == 1
    for rid, prompt in zip(rids, prompts, strict=True):
        assert engine.outcomes[rid, 0].tokens == greedy(model.reference, model.kind, prompt, more)


@pytest.mark.proof(each="model")
def test_rows_that_lost_their_blocks_or_their_worker_go_on_with_their_pictures(model: Seeing) -> None:
    check_losses(model)


@pytest.mark.proof
def test_media_that_see_each_other_are_computed_together_again_after_losses(tmp_path: Path) -> None:
    check_losses(Seeing("molmo2", tmp_path))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    """All tokens of its prompts see each other, behind a window too."""
    return Seeing("paligemma2", tmp_path_factory.mktemp("paligemma2"))


def test_prompts_that_see_themselves_whole_are_answered_after_losses_too(whole: Seeing) -> None:
    check_losses(whole)


def test_nothing_of_a_prompt_that_sees_itself_whole_is_found_by_another(whole: Seeing) -> None:
    whole.engine.restart(whole.engine.ready.num_blocks)
    for first in (40, 40, 90):
        prompt = whole.prompt(text(12), whole.picture(5), text(40), text(1, first))
        rid = whole.engine.submit(prompt.tokens, whole.params(), media=prompt.media)
        whole.engine.run(check=True)
        assert whole.engine.prompts[rid].cached_tokens == 0
        assert whole.engine.outcomes[rid, 0].tokens == greedy(whole.reference, whole.kind, prompt, ANSWER)


def test_a_model_whose_prompts_see_themselves_whole_is_served_with_its_pictures_alone(whole: Seeing) -> None:
    config = whole.engine.config
    assert open_family(config, "cpu").limits.max_prefill_chunk == 16 + 512, "a picture and a text"
    with pytest.raises(SetupError, match="PaliGemmaForConditionalGeneration is not served without its pictures"):
        open_family(msgspec.structs.replace(config, language_model_only=True), "cpu")
    with pytest.raises(CheckpointError, match="sees its prompts whole, of which no vectors are made"):
        open_pooling(Path(config.model))


@pytest.mark.proof(each="name")
@pytest.mark.parametrize("name", ["qwen3_vl", "qwen3_5", "gemma3", "ernie_vl"])
def test_workers_that_split_the_text_each_encode_its_pictures(name: str, tmp_path: Path) -> None:
    model = Seeing(name, tmp_path)
    prompt = model.prompt(text(5), model.picture(1), text(7))
    meeting = os.memfd_create("ranks")

    def answered(rank: int) -> tuple[Seeing, int]:
        config = msgspec.structs.replace(model.engine.config, tensor_parallel_size=2, rank=rank)
        own = copy.copy(model)
        own.engine = LocalEngine(config, set_up(config, lambda phase, done, total: None, meeting_fd=meeting))
        rid = own.ask(prompt)
        own.engine.run(check=True)
        return own, rid

    try:
        with ThreadPoolExecutor(2) as threads:
            for own, rid in threads.map(answered, range(2)):
                own.check(rid, prompt)
    finally:
        os.close(meeting)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        pytest.param("phi4_multimodal", "qkv_proj", id="of fused attention, as its own are"),
        pytest.param("ernie_vl", "q_proj", id="beside experts of media", marks=pytest.mark.proof),
    ],
)
def test_an_adapter_changes_what_is_said_of_a_picture(name: str, target: str, tmp_path: Path) -> None:
    folder, made = tmp_path / "adapter", tmp_path / "model"
    model = Seeing(name, made)
    added = save_adapter(model.reference, folder, targets=(target,))
    config = model_config(made, max_model_len=256, kv_cache_memory=8 << 20, enable_lora=True, max_lora_rank=4)
    model.engine = LocalEngine(config)
    prompt = model.prompt(text(5), model.picture(1, 1), text(7))
    answers = []
    for ref, whole in ((None, model.reference), (AdapterRef(1, "vision", str(folder)), merged(model.reference, added))):
        rid = model.engine.submit(prompt.tokens, model.params(), media=prompt.media, adapter=ref)
        model.engine.run(check=True)
        answers.append(model.engine.outcomes[rid, 0].tokens)
        assert answers[-1] == greedy(whole, model.kind, prompt, ANSWER)
    assert answers[0] != answers[1]


@pytest.mark.proof
def test_experts_that_are_told_of_tokens_of_media_are_numbered_behind_those_of_text(tmp_path: Path) -> None:
    model = Seeing("ernie_vl", tmp_path)
    mark = model.kind.expert_marks[0]
    prompt = model.prompt(text(5), [mark], text(4), model.picture(1), text(7))
    config = msgspec.structs.replace(model.engine.config, return_routed_experts=True, max_num_batched_tokens=7)
    model.engine = LocalEngine(config)
    params = msgspec.structs.replace(model.params(2), routed_experts=0)
    rid = model.engine.submit(prompt.tokens, params, media=prompt.media)
    model.engine.run(check=True)
    told = np.frombuffer(model.engine.outcomes[rid, 0].experts, np.uint8).reshape(-1, 2, 2)  # [tokens, layers, chosen]
    media = np.isin([*prompt.tokens, 0], [model.kind.placeholder, *model.kind.expert_marks])
    assert (told[media] >= 4).all()
    assert (told[~media] < 4).all()


def test_a_model_whose_file_leaves_out_a_token_of_its_canvas_takes_no_pictures() -> None:
    described = {**CONFIGS["minicpmv4_7"]().to_dict(), "slice_end_id": None}
    with pytest.raises(ConfigError, match="slice_end_id is missing"):
        TransformersTower(described, torch.float32, torch.device("cpu"), shapes_only=True)


def test_a_tower_that_wants_other_weights_in_the_decoder_is_refused() -> None:
    described = {**CONFIGS["granite_speech"]().to_dict(), "has_lora_adapter": True}
    with pytest.raises(ConfigError, match="expected a checkpoint without an adapter"):
        TransformersTower(described, torch.float32, torch.device("cpu"), shapes_only=True)
