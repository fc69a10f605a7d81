"""Decoders of text whose prompts see themselves whole, as transformers computes them with types of tokens."""

from pathlib import Path
from typing import Any

import pytest
import torch

from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.worker.families.media import MediaEncoder, with_prompts
from stentor.protocols.ipc.cache_groups import windows_of
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.parity import tiny
from stentor.tests.parity.cuts import prompt_of

ANSWER = 8


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("hrm")
    config = tiny.ARCHITECTURES["hrm"]()
    config.prefix_lm = True
    return tiny.make_of(config, "hrm", folder), folder


@torch.inference_mode()
def answer(model: Any, prompt: list[int], *, whole: bool = True) -> list[int]:
    """transformers' own, which computes all tokens anew for each."""
    tokens = list(prompt)
    for _ in range(ANSWER):
        types = [1] * len(prompt) + [0] * (len(tokens) - len(prompt))
        more = {"token_type_ids": torch.tensor([types])} if whole else {}
        tokens.append(int(model(torch.tensor([tokens]), use_cache=False, **more).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def test_all_tokens_of_a_prompt_see_each_other(made: tuple[Any, Path]) -> None:
    """Several at once, and again after preemptions."""
    model, folder = made
    engine = LocalEngine(model_config(folder, max_num_seqs=4, max_num_batched_tokens=128, max_model_len=128))
    engine.restart(8 * len(windows_of(engine.ready.groups)))
    prompts = [prompt_of(30 + number, 27 + number) for number in range(4)]
    params = SamplingParams(max_tokens=ANSWER, temperature=0.0)
    rids = [engine.submit(prompt, params) for prompt in prompts]
    engine.run(check=True)
    for prompt, rid in zip(prompts, rids, strict=True):
        assert engine.outcomes[rid, 0].tokens == answer(model, prompt)
    assert engine.scheduler.stats().preemptions > 0
    assert any(answer(model, prompt, whole=False) != answer(model, prompt) for prompt in prompts)


def test_a_device_leaves_no_room_for_encoding_where_nothing_is_encoded(made: tuple[Any, Path]) -> None:
    checkpoint = open_checkpoint(made[1])
    encoder = MediaEncoder(checkpoint, checkpoint.decoder, "cuda", with_prompts(None, checkpoint))
    kept = 4 * 128 * tiny.SHAPE["hidden_size"] * 4
    assert encoder.bytes(1 << 30, 128, 80 << 30) == kept
