"""What the readers of encoder-decoders of text take from a config.json, and what they refuse."""

from typing import Any

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.registry import read_config
from stentor.engine.model_config.seq2seq.text import Stack, TextToTextConfig
from stentor.engine.model_config.spec.mlp import MoESpec

NLLB = {
    "architectures": ["M2M100ForConditionalGeneration"],
    "decoder_start_token_id": 2,
    "max_position_embeddings": 1024,
}
FLAN = {"model_type": "t5", "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "n_positions": 512}


def read(config: dict[str, Any], generation: dict[str, Any] | None = None) -> TextToTextConfig:
    found = read_config(config, generation or {})
    assert isinstance(found, TextToTextConfig)
    return found


def encoder_of(config: TextToTextConfig) -> Stack:
    assert config.encoder_stack is not None
    return config.encoder_stack


def test_outputs_begin_with_the_tokens_that_the_files_name() -> None:
    assert read(NLLB).decoder_start == (2,)
    assert read(NLLB, {"forced_bos_token_id": 256_00}).decoder_start == (2, 25600)
    assert read(NLLB, {"decoder_start_token_id": 7, "forced_bos_token_id": None}).decoder_start == (7,)
    assert read(FLAN).decoder_start == (0,)
    assert read({"model_type": "mbart", "bos_token_id": 0}).decoder_start == (0,)
    assert read({"model_type": "marian"}).decoder_start == (58100,)


def test_a_published_flan_has_a_head_of_its_own_and_no_scale() -> None:
    found = read(FLAN)
    assert (found.head, found.logits_scale, found.max_position) == ("lm_head", 1.0, 512)
    tied = read({"model_type": "t5"})
    assert (tied.head, tied.logits_scale) == ("", 512**-0.5)
    assert read({"model_type": "t5", "scale_decoder_outputs": False, "tie_word_embeddings": True}).logits_scale == 1.0
    assert read({"model_type": "mt5"}).logits_scale == 1.0


def test_a_t5gemma_has_an_embedding_on_each_side_and_windows_that_exclude_the_token_itself() -> None:
    found = read({"model_type": "t5gemma", "encoder": {"hidden_size": 3584}, "eos_token_id": [1, 107]})
    assert (found.decoder_start, found.eos_token_ids, found.max_position) == ((2,), (1, 107), 8192)
    assert encoder_of(found).words == "model.encoder.embed_tokens"
    assert [layer.attention.window for layer in encoder_of(found).layers.layers[:2]] == [4097, 0]
    assert [layer.attention.window for layer in found.decoder.layers[:2]] == [4096, 0]
    cross = found.decoder.layers[0].cross
    assert cross is not None
    assert (cross.encoded, cross.softcap, found.logits_softcap) == (3584, 50.0, 30.0)


def test_a_t5gemma2_has_one_embedding_and_decoders_that_also_see_the_encoder() -> None:
    side = {"hidden_size": 640, "num_hidden_layers": 6, "sliding_window": 512}
    told = {"text_config": side, "eoi_token_index": 7}
    found = read({"model_type": "t5gemma2", "encoder": told, "decoder": side})
    assert (found.decoder_start, found.eos_token_ids, found.vocab_size) == ((2,), (1,), 262_208)
    layers = [layer.attention for layer in encoder_of(found).layers.layers]
    assert [(each.window, each.ahead) for each in layers[-2:]] == [(256, 256), (0, -1)]
    assert [layer.attention.window for layer in found.decoder.layers[-2:]] == [512, 0]
    assert {layer.attention.merged for layer in found.decoder.layers} == {True}
    assert {stack.input.apart for stack in (encoder_of(found), found.decoder_stack)} == {(7, "model.picture_end")}
    assert found.name_of("model.encoder.vision_tower.embeddings.weight") == found.unused[0]
    assert found.name_of("model.encoder.layers.0.mlp.up_proj.weight") == "model.encoder.layers.0.mlp.up_proj.weight"


def test_encoders_of_longt5_have_windows_and_possibly_sums_of_blocks() -> None:
    local = read({"model_type": "longt5", "num_layers": 2, "tie_word_embeddings": False})
    assert (local.source_positions, local.logits_scale, local.bounded) == (4096, 1.0, False)
    near = [layer.attention for layer in encoder_of(local).layers.layers]
    assert [(each.window, each.block_sums) for each in near] == [(128, None)] * 2
    assert {layer.attention.window for layer in local.decoder.layers} == {0}
    summed = read({"model_type": "longt5", "encoder_attention_type": "transient-global", "global_block_size": 8})
    sums = encoder_of(summed).layers.layers[-1].attention.block_sums
    assert sums is not None
    assert sums.size == 8
    assert sums.bias.stored == "model.encoder.layers.0.self_attn.global_relative_attention_bias"
    name = "encoder.block.3.layer.0.TransientGlobalSelfAttention.global_input_layer_norm.weight"
    assert summed.name_of(name) == "model.encoder.layers.3.self_attn.global_input_layer_norm.weight"


def test_every_so_manieth_layer_of_switch_transformers_has_experts() -> None:
    found = read({"model_type": "switch_transformers", "num_layers": 12, "num_sparse_decoder_layers": 0})
    layers = encoder_of(found).layers.layers
    assert [number for number, layer in enumerate(layers) if isinstance(layer.mlp, MoESpec)] == [1, 5, 9]
    moe = layers[1].mlp
    assert isinstance(moe, MoESpec)
    assert (moe.experts, moe.capacity, moe.activation, moe.router.top_k) == (8, 64, "relu", 1)
    sparse = [number for number, layer in enumerate(found.decoder.layers) if isinstance(layer.mlp, MoESpec)]
    assert sparse == [1], "as in transformers, whose step is then the number of layers"
    name = "decoder.block.1.layer.2.mlp.experts.expert_3.wi.weight"
    assert found.name_of(name) == "model.decoder.layers.1.mlp.experts.expert_3.wi.weight"


def test_embeddings_of_fsmt_are_apart_unless_it_ties_them() -> None:
    found = read({"model_type": "fsmt"})
    assert (encoder_of(found).words, found.head) == ("model.encoder.embed_tokens", "lm_head")
    tied = read({"model_type": "fsmt", "tie_word_embeddings": True})
    assert (encoder_of(tied).words, tied.head) == ("model.decoder.embed_tokens", "")
    assert (tied.vocab_size, tied.decoder_input.first, tied.decoder_start) == (42024, 2, (2,))


def test_texts_of_seamless_have_the_names_and_numbers_of_nllb() -> None:
    found = read({"model_type": "seamless_m4t_v2", "hidden_size": 1024})
    assert (found.vocab_size, found.max_position, found.decoder_start, found.eos_token_ids) == (
        256102,
        4096,
        (3,),
        (3,),
    )
    assert (found.decoder_input.scale, found.decoder_input.first) == (32.0, 1)
    assert found.name_of("text_decoder.layers.3.cross_attention.q_proj.bias") == (
        "model.decoder.layers.3.encoder_attn.q_proj.bias"
    )
    assert found.name_of("speech_encoder.inner_layer_norm.weight") == "unused"
    assert read({"architectures": ["SeamlessM4TForTextToText"]}).max_position == 1024


def test_encoders_of_led_have_windows_and_more_positions_than_decoders() -> None:
    found = read({"model_type": "led", "encoder_layers": 2, "attention_window": [512, 64]})
    assert (found.source_positions, found.max_position, found.decoder_start) == (16_384, 1024, (2,))
    assert [layer.attention.window for layer in encoder_of(found).layers.layers] == [257, 33]
    assert {layer.attention.window for layer in found.decoder.layers} == {0}


def test_tokens_that_no_output_contains_are_read() -> None:
    assert read({"model_type": "marian"}, {"bad_words_ids": [[58100]]}).never == (58100,)
    with pytest.raises(ConfigError, match="bad_words_ids holds '\\[1, 2\\]', expected lists of one token each"):
        read({"model_type": "marian", "bad_words_ids": [[1, 2]]})


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "t5", "feed_forward_proj": "tanh"}, "feed_forward_proj is 'tanh', expected one of relu"),
        ({"model_type": "t5", "feed_forward_proj": "odd-gelu"}, "feed_forward_proj is 'odd-gelu'"),
        ({"model_type": "t5", "relative_attention_num_buckets": 1}, "1 buckets of distances up to 128 are not known"),
        ({"model_type": "t5", "decoder_start_token_id": 40_000}, "the token 40000 is named, of a vocabulary of 32128"),
        (
            {"model_type": "longt5", "encoder_attention_type": "odd"},
            "encoder_attention_type is 'odd', expected 'local' or",
        ),
        (
            {"model_type": "t5gemma2", "encoder": {"text_config": {"hidden_size": 8}}},
            "encoder.text_config.hidden_size is 8, expected that of the decoder, 2304",
        ),
        ({"model_type": "switch_transformers", "dense_act_fn": "tanh"}, "dense_act_fn is 'tanh', expected one of relu"),
        ({"model_type": "bart", "encoder_attention_heads": 7}, "1024 dimensions do not divide among 7 heads"),
        ({"model_type": "bart", "activation_function": "tanh"}, "activation_function is 'tanh', expected one of gelu"),
        ({"model_type": "marian", "share_encoder_decoder_embeddings": False}, "expected one vocabulary"),
        ({"model_type": "mvp", "use_prompt": True}, "use_prompt is on, and keys of stored prompts are not read"),
        ({"model_type": "t5gemma", "encoder": {"vocab_size": 9}}, "encoder.vocab_size is 9, expected that of the dec"),
        (
            {"model_type": "led", "attention_window": 7},
            "attention_window is 7, expected an even number, or one for each",
        ),
        (
            {"model_type": "led", "attention_window": [8, 8]},
            "is \\[8, 8\\], expected an even number, or one for each of 12",
        ),
        ({"model_type": "fsmt", "src_vocab_size": 9}, "src_vocab_size is 9, expected that of the decoder, 42024"),
        ({"model_type": "seamless_m4t_v2", "tie_word_embeddings": False}, "tie_word_embeddings is off, expected one"),
        ({"model_type": "marian", "decoder_vocab_size": 9}, "decoder_vocab_size is 9, expected that of the encoder"),
    ],
)
def test_a_config_that_cannot_be_followed_is_refused(config: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read(config)
