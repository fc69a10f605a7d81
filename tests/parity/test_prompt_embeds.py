"""Prompts that are embeddings, beside transformers' ``inputs_embeds``."""

import base64
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from stentor.engine.model_config.towers.media_spec import prompt_token
from stentor.engine.worker.errors import SetupError
from stentor.engine.worker.setup.setup import open_family
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.server.media.embeds import made_of_prompt
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.parity.tiny import make

CLOSE = 1e-3
ANSWER = 6
TOP = 8


def embeddings(model: Any, count: int, seed: int = 0) -> torch.Tensor:
    """[count, hidden], near those of tokens and none of them."""
    draw = torch.Generator().manual_seed(seed)
    rows: torch.Tensor = model.get_input_embeddings()(torch.randint(3, 90, (count,), generator=draw))
    return (rows + rows.std() * torch.randn(rows.shape, generator=draw) / 4).detach()


def ask(engine: LocalEngine, model: Any, rows: torch.Tensor) -> int:
    """A request whose prompt they are."""
    data = base64.b64encode(save({"rows": rows})).decode()
    media = made_of_prompt(data, rows.shape[1], "prompt_embeds")
    token = prompt_token(model.config.get_text_config().vocab_size)
    params = SamplingParams(max_tokens=ANSWER, temperature=0.0, logprobs=TOP)
    return engine.submit([token] * len(rows), params, media=[media])


def check(engine: LocalEngine, rid: int, model: Any, rows: torch.Tensor) -> None:
    """Its answer is transformers', with the same probabilities."""
    found = engine.outcomes[rid, 0]
    answer = model.get_input_embeddings()(torch.tensor(found.tokens))
    with torch.inference_mode():
        logits = model(inputs_embeds=torch.cat([rows, answer])[None], use_cache=False).logits[0, len(rows) - 1 : -1]
    assert found.tokens == logits.argmax(-1).tolist()
    for told, expected in zip(found.logprobs, logits.float().log_softmax(-1), strict=True):
        for token, had in told.top:
            assert abs(had - expected[token]) < CLOSE


@pytest.mark.parametrize(
    "name",
    [
        *("llama", "gemma2", "gemma3", "granite", "granite4", "hyperclovax", "bloom", "gpt2", "opt"),
        *("mamba2", "zaya", "deepseek-v3", "minicpm3"),
    ],
)
def test_a_prompt_of_embeddings_is_continued_as_transformers_does(name: str, tmp_path: Path) -> None:
    model = make(name, tmp_path)
    engine = LocalEngine(model_config(tmp_path, max_model_len=128, kv_cache_memory=1 << 20, prompt_embeds=True))
    engine.restart(engine.ready.num_blocks, max_num_batched_tokens=24)
    prompts = [embeddings(model, 9), embeddings(model, 40, 1), embeddings(model, 1, 2)]
    rids = [ask(engine, model, rows) for rows in prompts]
    engine.run(check=True)
    for rid, rows in zip(rids, prompts, strict=True):
        check(engine, rid, model, rows)


def test_the_prefix_cache_tells_prompts_of_embeddings_apart(tmp_path: Path) -> None:
    model = make("llama", tmp_path, layers=2)
    engine = LocalEngine(model_config(tmp_path, max_model_len=128, kv_cache_memory=1 << 20, prompt_embeds=True))
    rows = [embeddings(model, 40), embeddings(model, 40, 1), embeddings(model, 40)]
    for each in rows:
        rid = ask(engine, model, each)
        engine.run(check=True)
        check(engine, rid, model, each)
    assert [engine.prompts[rid].cached_tokens for rid in range(3)] == [0, 0, 39]


@pytest.mark.parametrize("name", ["gemma3n", "deepseek-v4"])
def test_a_model_whose_layers_read_tokens_refuses_to_start_so(name: str, tmp_path: Path) -> None:
    make(name, tmp_path)
    with pytest.raises(SetupError, match=r"--enable-prompt-embeds: layers of .* read more of a prompt"):
        open_family(model_config(tmp_path, prompt_embeds=True), "cpu")
