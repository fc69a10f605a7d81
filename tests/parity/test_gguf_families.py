"""GGUF files of families with experts, latents or states agree with transformers in float32, however they are cut."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers.models.mpt.configuration_mpt import MptAttentionConfig

from stentor.engine.layers.linear.adapters import AdapterPlaces
from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.errors import CheckpointError
from stentor.engine.loading.gguf.dequantize import dequantize
from stentor.engine.loading.gguf.file import GGUFFile
from stentor.engine.loading.gguf.tensors import CONSUMED, read_floats
from stentor.engine.loading.gguf.types import GGMLType
from stentor.engine.loading.weights import iterate_weights
from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.gguf.config import model_spec_from_gguf
from stentor.engine.models.decoder import Decoder
from stentor.tests.engine.loading.gguf_families import Convert, as_it_is, delta, qwen_next, write_family
from stentor.tests.engine.loading.k_quants import quantize
from stentor.tests.parity import tiny
from stentor.tests.parity.cuts import check_cut, check_shared, check_whole, expected_logits, prompt_of
from stentor.tests.parity.paged import PagedDecoder

MODELS = {
    "gpt-oss": "gpt-oss",
    "qwen3-next-moe": "qwen3next",
    "qwen3.5": "qwen35",
    "qwen3.5-moe": "qwen35moe",
    "deepseek-v2": "deepseek2",
    "deepseek-v3": "deepseek2",
    "deepseek-v3-dense": "deepseek2",
    "youtu": "deepseek2",
    "glm4-moe-lite": "deepseek2",
    "kimi-linear": "kimi-linear",
    "granite-moe": "granitemoe",
    "granite-moe-shared": "granitemoe",
    "granite4-hybrid": "granitehybrid",
    "granite4-hybrid-moe": "granitehybrid",
    "falcon-h1": "falcon-h1",
    "falcon-h1-gated-norm": "falcon-h1",
    "mamba2": "mamba2",
    "mamba": "mamba",
    "falcon-mamba": "mamba",
    "jamba": "jamba",
    "jamba-dense": "jamba",
    "nemotron-h": "nemotron_h",
    "nemotron-h-moe": "nemotron_h_moe",
    "nemotron-h-latent": "nemotron_h_moe",
    "lfm2": "lfm2",
    "lfm2-moe": "lfm2moe",
    "minimax-m2": "minimax-m2",
    "mimo-v2-flash": "mimo2",
    "step3.5": "step35",
    "glm4-moe": "glm4moe",
    "llama4": "llama4",
    "qwen2-moe": "qwen2moe",
    "ernie-moe": "ernie4_5-moe",
    "hunyuan-moe": "hunyuan-moe",
    "dots1": "dots1",
    "exaone-moe": "exaone-moe",
    "afmoe": "afmoe",
    "ministral3": "mistral3",
    "mistral4": "mistral4",
    "exaone": "exaone",
    "internlm2": "internlm2",
    "glm": "chatglm",
    "minicpm": "minicpm",
    "minicpm3": "minicpm3",
    "minicpm4": "minicpm",
    "ling1": "bailingmoe",
    "ling2": "bailingmoe2",
    "deepseek": "deepseek",
    "nemotron-nas": "deci",
    "baichuan-13b": "baichuan",
    "llama-older": "xverse",
    "orion": "orion",
    "qwen1": "qwen",
    "internlm": "pangu-embedded",
    "nanbeige": "nanbeige",
    "ouro": "ouro",
    "olmo": "olmo",
    "jais2": "jais2",
    "gemma3n": "gemma3n",
    "gemma4": "gemma4",
    "gemma4-small": "gemma4",
    "gemma4-moe": "gemma4",
    "phimoe": "phimoe",
    "phimoe-biased": "phimoe",
    "gpt2": "gpt2",
    "gpt-bigcode": "starcoder",
    "gpt-neox": "gptneox",
    "gpt-neox-serial": "gptneox",
    "falcon": "falcon",
    "falcon-grouped": "falcon",
    "falcon-grouped-alike": "falcon",
    "bloom": "bloom",
    "bloom-six-heads": "bloom",
    "dbrx": "dbrx",
    "mpt": "mpt",
    "mpt-clipped": "mpt",
}
"""The names that llama.cpp has for the architectures of :data:`.tiny.ARCHITECTURES`."""


UNSAID: dict[str, dict[str, Any]] = {
    "falcon-mamba": {"mixer_rms_eps": 1e-6},
    "llama4": {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1},
    "qwen2-moe": {"layer_types": ["full_attention"] * 3},
    "dots1": {"layer_types": ["full_attention"] * 3},
    "hunyuan-moe": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "minicpm3": {"v_head_dim": 16, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},
    "olmo": {"attention_bias": False},
    "afmoe": {"layer_types": ["sliding_attention"] * 3},
    "falcon-grouped": {"bias": False},
    "mpt-clipped": {"attn_config": MptAttentionConfig(clip_qkv=0.5)},
}
"""What no file says otherwise."""


def made(name: str, folder: Path) -> Any:
    """The model, of what a file says of it."""
    config = tiny.ARCHITECTURES[name]()
    for field, value in UNSAID.get(name, {}).items():
        setattr(config, field, value)
    rope = getattr(config, "rope_parameters", None) or {}
    if "mscale_all_dim" in rope:
        rope["mscale"] = rope["mscale_all_dim"]  # of which files keep one
    return tiny.make_of(config, name, folder)


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    model = made(request.param, folder)
    write_family(folder / "m.gguf", model, MODELS[request.param])
    return model, folder / "m.gguf"


def test_a_prompt_of_a_gguf_file_gives_transformers_logits(pair: tuple[Any, Path]) -> None:
    check_whole(pair[0], PagedDecoder(pair[1]))


@pytest.mark.proof(each="pair")
def test_chunks_decodes_and_neighbours_change_nothing_of_a_gguf_file(pair: tuple[Any, Path]) -> None:
    check_cut(pair[0], PagedDecoder(pair[1]))


@pytest.mark.proof(each="pair")
def test_a_call_an_operation_gives_the_logits_of_a_gguf_file_too(pair: tuple[Any, Path]) -> None:
    check_whole(pair[0], PagedDecoder(pair[1], packed=False))


@pytest.mark.proof(each="pair")
def test_prefixes_of_a_gguf_file_are_shared(pair: tuple[Any, Path]) -> None:
    check_shared(pair[0], PagedDecoder(pair[1]))


def test_a_gguf_file_has_as_many_parameters_as_its_model(pair: tuple[Any, Path]) -> None:
    with GGUFFile(pair[1]) as file:
        shapes = [stored.shape for name, stored in file.tensors.items() if name not in CONSUMED]
    weights = pair[0].state_dict().values()
    stored = {weight.data_ptr(): weight.numel() for weight in weights}  # tied ones once
    found = open_checkpoint(pair[1]).decoder.parameters
    assert found == sum(map(math.prod, shapes)) <= sum(stored.values())


OLD: dict[str, tuple[str, Convert, dict[str, Any]]] = {
    "deepseek-v3": (
        "deepseek2",
        as_it_is,
        {
            "attention.head_count_kv": 4,
            "attention.key_length": 24,
            "attention.value_length": 24,
            "attention.key_length_mla": None,
            "attention.value_length_mla": None,
        },
    ),
    "qwen3-next-moe": ("qwen3next", delta, {}),
}
"""Names of the first converters: one weight for keys and values, projections of the delta rule by head."""


@pytest.mark.parametrize("name", OLD)
def test_files_of_first_converters_are_read(name: str, tmp_path: Path) -> None:
    arch, convert, metadata = OLD[name]
    model = made(name, tmp_path)
    write_family(tmp_path / "m.gguf", model, arch, metadata=metadata, convert=convert)
    check_whole(model, PagedDecoder(tmp_path / "m.gguf"))


def test_mistral_large_3_is_read_under_the_name_of_deepseek(tmp_path: Path) -> None:
    model = made("mistral4", tmp_path)
    said = {
        "expert_gating_func": 1,
        "attention.temperature_scale": model.config.rope_parameters["llama_4_scaling_beta"],
        "attention.temperature_length": model.config.rope_parameters["original_max_position_embeddings"],
    }
    write_family(tmp_path / "m.gguf", model, "deepseek2", metadata=said)
    check_whole(model, PagedDecoder(tmp_path / "m.gguf"))


@pytest.mark.parametrize("name", ["gpt2", "gpt-neox"])
def test_adapters_find_no_place_where_rows_lie_in_another_order_than_theirs(name: str, tmp_path: Path) -> None:
    model = made(name, tmp_path)
    write_family(tmp_path / "m.gguf", model, MODELS[name])
    places = AdapterPlaces()
    context = LayerContext(torch.device("cpu"), torch.float32, False, shapes_only=True, adapters=places)
    Decoder(open_checkpoint(tmp_path / "m.gguf").decoder, context, 1)
    assert ("transformer.h.0.attn.c_attn" in places.by_name) == (name == "gpt2")
    assert "gpt_neox.layers.0.attention.query_key_value" not in places.by_name


@pytest.mark.parametrize("name", ["glm4-moe", "mimo-v2-flash", "step3.5"])
def test_layers_that_predict_further_tokens_are_passed_over(name: str, tmp_path: Path) -> None:
    model = made(name, tmp_path)
    block = f"blk.{model.config.get_text_config().num_hidden_layers}"
    drafts = {f"{block}.nextn.eh_proj.weight": torch.ones(64, 128), f"{block}.attn_norm.weight": torch.ones(64)}
    write_family(tmp_path / "m.gguf", model, MODELS[name], metadata={"nextn_predict_layers": 1}, beside=drafts)
    check_whole(model, PagedDecoder(tmp_path / "m.gguf"))


MXFP4 = gguf.GGMLQuantizationType.MXFP4


def test_experts_of_gpt_oss_in_mxfp4_are_read_and_multiplied_as_stored(tmp_path: Path) -> None:
    model = made("gpt-oss", tmp_path)
    for name, weight in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            rows = weight.data.transpose(1, 2).flatten(0, 1).numpy()
            values = torch.from_numpy(gguf.quants.dequantize(quantize(rows, MXFP4), MXFP4))
            weight.data = values.view(len(weight), weight.shape[2], -1).transpose(1, 2).contiguous()
    write_family(tmp_path / "m.gguf", model, "gpt-oss", {"_exps.weight": MXFP4})
    check_whole(model, PagedDecoder(tmp_path / "m.gguf"))
    packed = PagedDecoder(tmp_path / "m.gguf", dtype=torch.bfloat16)
    assert any("experts in MXFP4: packed for this CPU" in line for line in packed.model.weights.note_lines())
    prompt = prompt_of(1)
    packed.add(0, prompt)
    (logits,) = packed.run((0, 0, len(prompt)))
    expected = expected_logits(model, prompt)
    assert ((logits - expected).abs() / expected.std()).mean() < 0.1


@pytest.mark.parametrize(
    "name", ["qwen3-next-moe", "qwen3.5", "granite-moe", "falcon-h1", "jamba", "falcon", "gemma3n"]
)
def test_rows_of_blocks_are_moved_as_rows_of_values_are(name: str, tmp_path: Path) -> None:
    model = made(name, tmp_path)
    stems = ("attn_q.", "attn_k.", "attn_qkv.", "attn_gate.", "ssm_in.", "ssm_ba.", "ssm_alpha.", "ssm_beta.")
    kinds = dict.fromkeys((*stems, "altup_proj.", "altup_unembd_proj."), gguf.GGMLQuantizationType.Q8_0)
    write_family(tmp_path / "m.gguf", model, MODELS[name], kinds)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    assert checkpoint.quantized is not None
    raw = {f"{part}.weight" for part in checkpoint.quantized.parts}
    blocks = {name: tensor.clone() for name, tensor in iterate_weights(checkpoint, torch.float32, raw=raw)}
    values = dict(iterate_weights(checkpoint, torch.float32))
    assert raw
    for each in raw:
        rows = dequantize(blocks[each].contiguous(), GGMLType.Q8_0)
        assert torch.equal(rows, values[each].reshape(rows.shape)), each


def test_rows_that_do_not_divide_among_heads_are_refused_in_one_line(tmp_path: Path) -> None:
    def cut_short(name: str, tensor: torch.Tensor, config: Any) -> Iterator[tuple[str, torch.Tensor]]:
        yield from (
            (each, part[:7] if "in_proj_ba" in each else part) for each, part in qwen_next(name, tensor, config)
        )

    write_family(tmp_path / "m.gguf", made("qwen3-next-moe", tmp_path), "qwen3next", convert=cut_short)
    with pytest.raises(CheckpointError, match=r"'blk.0.ssm_ba.weight' has shape \(7, 64\), which does not divide"):
        list(iterate_weights(open_checkpoint(tmp_path / "m.gguf"), torch.float32))


@pytest.mark.parametrize(
    ("name", "metadata", "message"),
    [
        ("gemma4", {"attention.sliding_window_pattern": [True]}, "sliding_window_pattern is of 1 layers, expected 4"),
        (
            "gemma3n",
            {"activation_sparsity_scale": [1]},
            "activation_sparsity_scale is missing, expected a list of numb",
        ),
        ("gemma3n", {"activation_sparsity_scale": [0.5]}, "activation_sparsity_pattern is of 1 layers, expected 5"),
        ("gemma3n", {"feed_forward_length": [96]}, "feed_forward_length is of 1 layers, expected 5"),
        ("mimo-v2-flash", {"attention.sliding_window_pattern": [True]}, "window_pattern is of 1 layers, expected 4"),
        ("gemma4", {"attention.head_count_kv": [2]}, "head_count_kv is of 1 layers, expected 4"),
        ("glm4-moe", {"nextn_predict_layers": 3, "block_count": 3}, "3 of its 3 layers predict tokens further ahead"),
        ("nemotron-h", {"attention.head_count": 0}, "attention.head_count is 0, expected more of a model with layers"),
    ],
)
def test_metadata_that_contradicts_itself_is_refused_in_one_line(
    name: str, metadata: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_family(tmp_path / "m.gguf", made(name, tmp_path), MODELS[name])
    with GGUFFile(tmp_path / "m.gguf") as file:
        said = {**file.metadata, **{f"{MODELS[name]}.{key}": value for key, value in metadata.items()}}
        shapes = {tensor: stored.shape for tensor, stored in file.tensors.items()}
        with pytest.raises(ConfigError, match=message):
            model_spec_from_gguf(said, shapes, lambda tensor: read_floats(file, tensor))


def test_a_bamba_is_refused_in_one_line(tmp_path: Path) -> None:
    model = made("granite4-hybrid", tmp_path)
    write_family(tmp_path / "m.gguf", model, "granitehybrid", metadata={"rope.scaling.finetuned": True})
    with pytest.raises(
        CheckpointError, match="it is a Bamba, whose rotated heads a GGUF file stores in no known order"
    ):
        open_checkpoint(tmp_path / "m.gguf")
