"""Decoders that run on transformers' modules here give transformers' own logits in float32, and the engine draws its
tokens."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from stentor.engine.layers.linear.weights import WeightError
from stentor.engine.model_config.transformers_config import TransformersSpec
from stentor.engine.models.transformers.decoder import TransformersDecoder
from stentor.protocols.ipc.cache_groups import windows_of
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.tests.engine.local import LocalEngine, model_config
from stentor.tests.parity import tiny
from stentor.tests.parity.cuts import LENGTH, check_cut, check_drawn, check_shared, check_whole, prompt_of
from stentor.tests.parity.paged import BLOCK, PagedDecoder
from stentor.tests.parity.tiny import SHAPE, VOCAB, transformers

WINDOW = 24
TOKENS = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_GPT2 = {**TOKENS, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128}
_PLAIN = {name: value for name, value in SHAPE.items() if name != "num_key_value_heads"}
_FALCON = {**TOKENS, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "alibi": False, "bias": True}
_WINDOWS = ["sliding_attention", "full_attention", "sliding_attention"]

_ARIA = {**SHAPE, "model_type": "aria_text", "moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1}
_SEEING = {
    "model_type": "idefics3_vision",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_TWO = {**SHAPE, "num_hidden_layers": 2}
BY_ROW: dict[str, Callable[[], Any]] = {
    "bloom": lambda: transformers.BloomConfig(**TOKENS, hidden_size=64, n_layer=3, n_head=4),
    "falcon-alibi": lambda: transformers.FalconConfig(**{**_FALCON, "alibi": True}, max_position_embeddings=128),
    "gpt-neo": lambda: transformers.GPTNeoConfig(
        **TOKENS,
        hidden_size=64,
        num_layers=3,
        num_heads=4,
        attention_types=[[["global", "local", "local"], 1]],
        window_size=WINDOW,
        max_position_embeddings=128,
    ),
    "latent": lambda: transformers.DeepseekV3Config(
        **{**SHAPE, "num_key_value_heads": 4},
        kv_lora_rank=32,
        q_lora_rank=32,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
        first_k_dense_replace=3,
    ),
    "diffllama": lambda: transformers.DiffLlamaConfig(**_TWO),
    "doge": lambda: transformers.DogeConfig(**_TWO),
    "hrm-text": lambda: transformers.HrmTextConfig(
        **{**_PLAIN, "num_hidden_layers": 1}, head_dim=16, H_cycles=1, L_cycles=2, prefix_lm=False
    ),
    "mpt": lambda: transformers.MptConfig(**TOKENS, d_model=64, n_layers=3, n_heads=4, max_seq_len=128),
}
"""Whose modules attend by their own code."""

ARCHITECTURES: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: transformers.GPT2Config(**_GPT2),
    "gpt2-scaled": lambda: transformers.GPT2Config(
        **_GPT2, scale_attn_by_inverse_layer_idx=True, reorder_and_upcast_attn=False, tie_word_embeddings=False
    ),
    "gpt-neox": lambda: transformers.GPTNeoXConfig(**_PLAIN),
    "opt": lambda: transformers.OPTConfig(
        **TOKENS,
        hidden_size=64,
        ffn_dim=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=128,
        word_embed_proj_dim=32,
    ),
    "falcon-7b": lambda: transformers.FalconConfig(**_FALCON, multi_query=True, max_position_embeddings=128),
    "falcon-40b": lambda: transformers.FalconConfig(
        **_FALCON, new_decoder_architecture=True, num_kv_heads=2, max_position_embeddings=128
    ),
    "phimoe": lambda: transformers.PhimoeConfig(**SHAPE, num_local_experts=4, sliding_window=WINDOW),
    "mellum": lambda: transformers.MellumConfig(
        **SHAPE,
        head_dim=16,
        sliding_window=WINDOW,
        layer_types=_WINDOWS,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
    ),
    "llama": lambda: transformers.LlamaConfig(**SHAPE),
    "dbrx": lambda: transformers.DbrxConfig(
        **TOKENS,
        d_model=64,
        n_heads=4,
        n_layers=3,
        max_seq_len=128,
        attn_config={"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        ffn_config={"ffn_hidden_size": 32, "moe_num_experts": 6, "moe_top_k": 2},
    ),
    "jetmoe": lambda: transformers.JetMoeConfig(
        **TOKENS,
        hidden_size=64,
        intermediate_size=48,
        num_hidden_layers=3,
        num_key_value_heads=2,
        kv_channels=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=128,
    ),
    "ctrl": lambda: transformers.CTRLConfig(**TOKENS, n_embd=64, dff=96, n_layer=2, n_head=4, n_positions=128),
    "modernbert-decoder": lambda: transformers.ModernBertDecoderConfig(**_PLAIN, local_attention=WINDOW),
    **BY_ROW,
    "aria": lambda: transformers.AriaConfig(text_config=_ARIA, vision_config=_SEEING, image_token_index=300),
}


@pytest.fixture(scope="module", params=sorted(ARCHITECTURES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    return tiny.make_of(ARCHITECTURES[request.param](), request.param, folder), folder


def _paged(folder: Path) -> PagedDecoder:
    ours = PagedDecoder(folder, model_impl="transformers")
    assert isinstance(ours.model, TransformersDecoder)
    return ours


def test_only_modules_that_attend_by_their_own_code_run_a_row_at_a_time(
    pair: tuple[Any, Path], request: pytest.FixtureRequest
) -> None:
    config = _paged(pair[1]).config
    assert isinstance(config, TransformersSpec)
    assert bool(config.rows) == (request.node.callspec.params["pair"] in BY_ROW)


def test_a_prompt_prefilled_whole_gives_transformers_logits(pair: tuple[Any, Path]) -> None:
    check_whole(pair[0], _paged(pair[1]))


def test_chunks_decodes_and_neighbours_change_nothing(pair: tuple[Any, Path]) -> None:
    check_cut(pair[0], _paged(pair[1]))


@pytest.mark.proof(each="pair")
def test_blocks_shared_with_another_row_are_read_as_if_computed_here(pair: tuple[Any, Path]) -> None:
    check_shared(pair[0], _paged(pair[1]))


@pytest.mark.proof(each="pair")
@torch.inference_mode()
def test_the_engine_draws_transformers_tokens_after_preemptions_and_over_shared_prefixes(
    pair: tuple[Any, Path],
) -> None:
    model, folder = pair
    config = model_config(folder, max_num_batched_tokens=48, max_model_len=128, model_impl="transformers")
    engine = LocalEngine(config)
    engine.restart(12 * len(windows_of(engine.ready.groups)))
    params = SamplingParams(max_tokens=16, temperature=0.0)
    shared = prompt_of(19, 2 * BLOCK)
    engine.generate([*shared, 3], params)
    prompts = [shared + prompt_of(20 + number, 3 + 7 * number) for number in range(5)]
    rids = [engine.submit(prompt, params) for prompt in prompts]
    engine.run(check=True)
    assert engine.scheduler.stats().preemptions > 0
    assert engine.prompts[rids[0]].cached_tokens > 0
    for prompt, rid in zip(prompts, rids, strict=True):
        check_drawn(model, engine, prompt, rid, 16)


def test_what_reads_a_prompt_in_both_directions_is_refused(tmp_path: Path) -> None:
    text = {**SHAPE, "model_type": "gemma", "head_dim": 16}
    seeing = {**_SEEING, "model_type": "siglip_vision_model"}
    config = transformers.PaliGemmaConfig(text_config=text, vision_config=seeing, image_token_index=300)
    tiny.make_of(config, "paligemma", tmp_path)
    with pytest.raises(WeightError, match="says other things of a text"):
        _paged(tmp_path)


def test_what_counts_positions_from_elsewhere_is_refused(tmp_path: Path) -> None:
    tiny.make_of(transformers.RobertaConfig(**{**SHAPE, "is_decoder": True, "pad_token_id": 1}), "roberta", tmp_path)
    with pytest.raises(WeightError, match="given positions from 0 on"):
        _paged(tmp_path)


def test_a_native_llama_and_transformers_own_give_the_same_logits(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)
    native, ours = PagedDecoder(tmp_path, model_impl="native"), _paged(tmp_path)
    prompt = prompt_of(6)
    found = []
    for each in (native, ours):
        each.add(0, prompt)
        found.append(each.run((0, 0, LENGTH))[0])
    assert not isinstance(native.model, TransformersDecoder)
    torch.testing.assert_close(found[1], found[0], rtol=0.0, atol=1e-3)
