"""Which models transformers' modules run here, and what is said of those that they do not."""

from typing import Any

import pytest
import transformers as untyped_transformers

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.registry import Implementation, read_config
from stentor.engine.model_config.transformers_config import TransformersSpec
from stentor.engine.models.transformers.modules import probed

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""

GPT2 = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4)
PROJECTED = transformers.OPTConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=32)
"""A form of a native architecture that no native layers have."""
_ATTENDING = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_TOLD = (
    *("architectures", "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "moe_intermediate_size", "max_position_embeddings", "bos_token_id", "eos_token_id"),
)
"""Fields that every file has."""


def described(config: Any, architecture: str, **changes: Any) -> dict[str, object]:
    return {**config.to_dict(), "architectures": [architecture], **changes}


def refusal(config: dict[str, object], implementation: Implementation = "auto") -> str:
    with pytest.raises(ConfigError) as caught:
        read_config(config, {}, implementation)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("config", "architecture"),
    [
        (transformers.PegasusXConfig(), "PegasusXForConditionalGeneration"),
        (transformers.BartConfig(), "BartForCausalLM"),
    ],
)
def test_an_encoder_decoder_is_refused(config: Any, architecture: str) -> None:
    message = refusal(described(config, architecture))
    assert f"its architecture '{architecture}' is not native here" in message
    assert message.endswith(", and it is an encoder-decoder, which transformers' modules do not run here")


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("nemo_speechlm", "NemoSpeechForConditionalGeneration"),
    ],
)
def test_a_model_that_hears_is_refused_with_those_that_transcribe(kind: str, architecture: str) -> None:
    message = refusal({"architectures": [architecture], "model_type": kind})
    assert f"of model type '{kind}' transformers has a class that hears" in message
    assert "transcribe with such as Whisper" in message


@pytest.mark.parametrize(
    ("config", "architecture", "reason"),
    [
        (transformers.xLSTMConfig(), "xLSTMForCausalLM", "has no attention heads, expected a decoder"),
        (transformers.RwkvConfig(), "RwkvForCausalLM", "has no attention heads, expected a decoder whose every layer"),
    ],
)
def test_a_model_with_recurrent_layers_is_refused(config: Any, architecture: str, reason: str) -> None:
    assert f"and {architecture} {reason}" in refusal(described(config, architecture))


def test_cross_attention_and_encoders_are_refused() -> None:
    assert "has cross-attention" in refusal(described(GPT2, "GPT2LMHeadModel", add_cross_attention=True))
    bert = described(transformers.BertConfig(), "BertLMHeadModel")
    assert "sees tokens behind the current one, expected a causal decoder" in refusal(bert)


def test_prompts_that_are_read_in_both_directions_are_refused_with_what_to_change() -> None:
    message = refusal(described(transformers.HrmTextConfig(), "HrmTextForCausalLM"), "transformers")
    assert "HrmTextForCausalLM reads prompts in both directions (prefix_lm), expected a causal decoder" in message
    causal = described(transformers.HrmTextConfig(prefix_lm=False), "HrmTextForCausalLM")
    assert isinstance(read_config(causal, {}, "transformers"), TransformersSpec)


@pytest.mark.parametrize("implementation", ["auto", "transformers"])
def test_a_quantised_checkpoint_is_refused(implementation: Implementation) -> None:
    quantized = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    message = refusal(described(PROJECTED, "OPTForCausalLM", quantization_config=quantized), implementation)
    assert "its weights are quantised, which transformers' modules do not read here: use plain weights" in message


@pytest.mark.parametrize("implementation", ["auto", "native"])
def test_an_unknown_architecture_is_told_the_nearest_native_one_and_that_transformers_lacks_it(
    implementation: Implementation,
) -> None:
    message = refusal(described(GPT2, "Qwen9ForCausalLM", model_type="qwen9"), implementation)
    assert message == (
        "its architecture 'Qwen9ForCausalLM' is not native here (nearest: Qwen3ForCausalLM), and its model type "
        "'qwen9' is none that transformers ships; code in checkpoints is never run"
    )


def test_an_architecture_like_none_is_told_no_nearest_one() -> None:
    assert "'Zzyzx' is not native here, and its" in refusal({"architectures": ["Zzyzx"], "model_type": "zzyzx"})


def test_an_architecture_of_the_checkpoints_own_code_is_refused_beside_a_known_model_type() -> None:
    mine = described(GPT2, "MineForCausalLM", auto_map={"AutoModelForCausalLM": "modeling_mine.MineForCausalLM"})
    assert "MineForCausalLM is no decoder in transformers, expected GPT2LMHeadModel" in refusal(mine)


def test_native_alone_says_that_transformers_would_run_it() -> None:
    message = refusal(described(transformers.TrOCRConfig(), "TrOCRForCausalLM"), "native")
    assert "'TrOCRForCausalLM' is not native here" in message
    assert message.endswith("transformers has modelling code for it: leave --model-impl native out to run that")


def test_auto_takes_transformers_modules_only_where_there_is_no_native_model() -> None:
    llama = described(transformers.LlamaConfig(), "LlamaForCausalLM")
    assert not isinstance(read_config(llama, {}), TransformersSpec)
    assert isinstance(read_config(llama, {}, "transformers"), TransformersSpec)
    assert isinstance(read_config(described(PROJECTED, "OPTForCausalLM"), {}), TransformersSpec)


@pytest.mark.parametrize(
    ("config", "architecture", "kept"),
    [
        (transformers.LlamaConfig(**_ATTENDING), "LlamaForCausalLM", []),
        (transformers.ModernBertDecoderConfig(**_ATTENDING), "ModernBertDecoderForCausalLM", []),
        (transformers.BloomConfig(hidden_size=64, n_layer=2, n_head=4), "BloomForCausalLM", [(16, 16)] * 2),
        (transformers.FalconConfig(**_ATTENDING, alibi=True), "FalconForCausalLM", [(16, 16)] * 2),
    ],
)
def test_what_a_layer_keeps_is_found_where_it_attends_by_its_own_code(
    config: Any, architecture: str, kept: list[tuple[int, int]]
) -> None:
    description = described(config, architecture)
    spec = read_config(description, {}, "transformers")
    assert isinstance(spec, TransformersSpec)
    found = probed(description, spec)
    assert [(each.key_dim, each.value_dim) for each in found.rows] == kept
    assert len(found.layers) == 2


def test_a_context_without_a_last_position_is_as_long_as_the_trained_one() -> None:
    assert read_config(described(transformers.BloomConfig(), "BloomForCausalLM"), {}).max_position == 2048


def test_a_decoder_that_keeps_no_keys_is_refused_before_weights_are_read() -> None:
    description = described(transformers.OpenAIGPTConfig(n_embd=64, n_layer=2, n_head=4), "OpenAIGPTLMHeadModel")
    spec = read_config(description, {}, "transformers")
    assert isinstance(spec, TransformersSpec)
    with pytest.raises(ConfigError) as caught:
        probed(description, spec)
    message = str(caught.value)
    assert message.startswith("transformers' OpenAIGPTLMHeadModel cannot run over a paged cache: ")
    assert "; nor a row at a time: " in message


def test_sizes_that_differ_between_layers_are_found_in_the_layers() -> None:
    config = transformers.Gemma4UnifiedTextConfig(
        **_ATTENDING, num_key_value_heads=2, head_dim=16, global_head_dim=32, intermediate_size=64, vocab_size=99
    )
    description = described(config, "Gemma4UnifiedForCausalLM")
    spec = read_config(description, {}, "transformers")
    assert isinstance(spec, TransformersSpec)
    assert [layer.attention.head_dim for layer in probed(description, spec).layers] == [16, 32]


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        ("HYV4ForCausalLM", "hy_v4"),
        ("KimiLinearForCausalLM", "kimi_linear"),
        ("LaraMiniForCausalLM", "lara_mini"),
        ("SarvamMoEForCausalLM", "sarvam_moe"),
    ],
)
def test_what_a_file_omits_is_as_its_class_has_it(architecture: str, kind: str) -> None:
    whole = described(transformers.AutoConfig.for_model(kind), architecture, model_type=kind)
    told = {field: whole[field] for field in _TOLD if field in whole}
    assert model_spec_from_hf(told) == model_spec_from_hf(whole)
