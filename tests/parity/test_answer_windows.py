"""Unlimited-OCR, whose answers see their whole prompt and their last tokens, beside transformers' class, which has a
cache of its own for this."""

from pathlib import Path
from typing import Any

import pytest
import torch

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.setup.setup import open_family
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.parity.cuts import prompt_of
from stentor.tests.parity.pictures import Kind, Prompt
from stentor.tests.parity.pictures import prompt_of as with_pictures
from stentor.tests.parity.published import PUBLISHED, deepseek_ocr

ANSWER = 24
WINDOW = 4


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("unlimited")
    return deepseek_ocr(folder, window=WINDOW), folder


@pytest.fixture(scope="module")
def engine(made: tuple[Any, Path]) -> LocalEngine:
    return LocalEngine(model_config(made[1], max_num_seqs=4, max_model_len=256, kv_cache_memory=8 << 20))


@torch.inference_mode()
def answer(model: Any, tokens: list[int], **media: Any) -> list[int]:
    """transformers' own, whose cache counts what it is given first as the prompt."""
    found: list[int] = []
    told = model(input_ids=torch.tensor([tokens]), use_cache=True, **media)
    while len(found) < ANSWER:
        logits = told.logits[0, -1].clone()
        logits[KIND.placeholder] = -torch.inf
        found.append(int(logits.argmax()))
        told = model(input_ids=torch.tensor([found[-1:]]), cache=told.cache, use_cache=True)
    return found


@torch.inference_mode()
def seeing_all(model: Any, prompt: list[int]) -> list[int]:
    """What it would answer without the window."""
    tokens = list(prompt)
    for _ in range(ANSWER):
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]
        logits[KIND.placeholder] = -torch.inf
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


KIND: Kind = PUBLISHED["deepseek_ocr"].kind
PARAMS = SamplingParams(max_tokens=ANSWER, temperature=0.0, banned_token_ids=KIND.unsaid)
PROMPTS = [prompt_of(11 + 9 * number, 5 + number) for number in range(3)]


def check(engine: LocalEngine, model: Any, prompts: list[list[int]]) -> None:
    rids = [engine.submit(prompt, PARAMS) for prompt in prompts]
    engine.run(check=True)
    for prompt, rid in zip(prompts, rids, strict=True):
        assert engine.outcomes[rid, 0].tokens == answer(model, prompt)
        assert engine.prompts[rid].cached_tokens == 0


def test_an_answer_sees_its_prompt_and_its_last_tokens(made: tuple[Any, Path], engine: LocalEngine) -> None:
    """Several at once, also of one prompt."""
    engine.restart(engine.ready.num_blocks)
    check(engine, made[0], [*PROMPTS, PROMPTS[0]])
    assert all(answer(made[0], prompt) != seeing_all(made[0], prompt) for prompt in PROMPTS)


def test_a_prompt_in_chunks_has_the_same_answer(made: tuple[Any, Path], engine: LocalEngine) -> None:
    engine.restart(engine.ready.num_blocks, max_num_batched_tokens=7)
    check(engine, made[0], PROMPTS)


def test_an_answer_that_is_computed_again_is_the_same(made: tuple[Any, Path], engine: LocalEngine) -> None:
    """With other blocks, and after a worker's death."""
    engine.restart(engine.ready.num_blocks)
    begun, deaths = engine.steps, engine.deaths

    def dies() -> bool:
        if engine.steps == begun + 10:
            engine.scheduler.recompute()
        return engine.steps == begun + 15 and engine.deaths == deaths

    rids = [engine.submit(prompt, PARAMS) for prompt in PROMPTS]
    engine.run(check=True, dies=dies)
    for prompt, rid in zip(PROMPTS, rids, strict=True):
        assert engine.outcomes[rid, 0].tokens == answer(made[0], prompt)
    assert engine.deaths == deaths + 1


def test_an_answer_about_a_picture_sees_the_whole_picture(made: tuple[Any, Path], engine: LocalEngine) -> None:
    engine.restart(engine.ready.num_blocks)
    picture = KIND.draw(torch.Generator().manual_seed(3), 1)
    prompt: Prompt = with_pictures(KIND, PROMPTS[0], picture, PROMPTS[1])
    rid = engine.submit(prompt.tokens, PARAMS, media=prompt.media)
    engine.run(check=True)
    assert engine.outcomes[rid, 0].tokens == answer(made[0], prompt.tokens, **KIND.merge([picture.tensors]))


def test_a_model_with_such_answers_is_refused_on_a_device(engine: LocalEngine) -> None:
    with pytest.raises(SetupError, match="attends to its prompt and the end of its answer, which no step on a GPU"):
        open_family(engine.config, "cuda")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"layer_types": ["sliding_attention"]}, "layer_types holds 'sliding_attention', expected 'reference_sliding"),
        ({"rswa_window": 64, "sliding_window": 32}, "rswa_window is 64, expected sliding_window, 32"),
    ],
)
def test_windows_of_another_form_are_refused(change: dict[str, object], why: str) -> None:
    text = {"vocab_size": 64, "num_hidden_layers": 1, **change}
    with pytest.raises(ConfigError, match=why):
        model_spec_from_hf({"architectures": ["UnlimitedOcrForConditionalGeneration"], "text_config": text})
