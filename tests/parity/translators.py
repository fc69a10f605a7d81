"""Tiny random encoder-decoders from text to text of transformers' own making."""

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
import transformers as untyped_transformers

from stentor.tests.parity.transcribers import tiny_seamless

transformers: Any = untyped_transformers

VOCAB = 200
T5: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 48,
    "d_kv": 16,
    "d_ff": 80,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "n_positions": 64,
    "decoder_start_token_id": 0,
}


_COMPUTED: Final = ("inv_freq", "embed_scale", "position_ids")
"""Ends of the names of buffers that are no weights."""


def _enlarged(model: Any) -> Any:
    """In float32, with weights large enough for every part to count."""
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if "norm" in name and name.endswith("weight"):
                tensor.uniform_(0.6, 1.4)
            elif "relative_attention_bias" in name or name == "final_logits_bias":
                tensor.normal_(0, 1.0)
            elif tensor.requires_grad or not ("embed_positions" in name or name.endswith(_COMPUTED)):
                tensor.normal_(0, 0.15)
    return model.float().eval()


def tiny_t5(kind: str = "T5", seed: int = 0, **changes: Any) -> Any:
    """transformers' model of ``kind``, such as ``MT5``."""
    torch.manual_seed(seed)
    config = getattr(transformers, f"{kind}Config")(**{**T5, **changes}, attn_implementation="eager")
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    return _enlarged(model)


def tiny_switch(**changes: Any) -> Any:
    """Switch Transformers. Its decoder gets tokens one by one, so that experts there have room for all."""
    sparse = {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 3, "num_experts": 4}
    model = tiny_t5("SwitchTransformers", **{**sparse, "expert_capacity": 3, **changes})
    for module in model.decoder.modules():
        if hasattr(module, "expert_capacity"):
            module.expert_capacity = 1 << 20
    return model


def with_own_head(model: Any) -> Any:
    """The model with a head that is not the embedding, as T5 1.1 and Flan have."""
    model.lm_head.weight = torch.nn.Parameter(torch.randn(VOCAB, model.config.d_model) * 0.15)
    return model


BART: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 48,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 80,
    "decoder_ffn_dim": 96,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 3,
    "decoder_start_token_id": 2,
}


def tiny_bart(kind: str = "Bart", seed: int = 0, **changes: Any) -> Any:
    """transformers' model of a descendant of BART, such as ``MBart``."""
    torch.manual_seed(seed)
    config = getattr(transformers, f"{kind}Config")(**{**BART, **changes}, attn_implementation="eager")
    name = "MarianMTModel" if kind == "Marian" else f"{kind}ForConditionalGeneration"
    return _enlarged(getattr(transformers, name)(config))


def tiny_fsmt(**changes: Any) -> Any:
    """FSMT, with sinusoids for positions, which its class keeps as parameters. With a cache its decoder would not be
    causal, since it gets tokens one by one."""
    model = tiny_bart("FSMT", src_vocab_size=VOCAB, tgt_vocab_size=VOCAB, use_cache=False, **changes)
    for side in (model.model.encoder, model.model.decoder):
        table = side.embed_positions
        table.make_weight(*table.weight.shape, table.padding_idx)
    return model


GEMMA: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "query_pre_attn_scalar": 16,
    "sliding_window": 8,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 4.0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
"""A side of T5Gemma."""


def tiny_t5gemma(seed: int = 0, encoder: dict[str, Any] | None = None, **changes: Any) -> Any:
    """T5Gemma; ``encoder``: what is different on that side."""
    torch.manual_seed(seed)
    sides = {"encoder": {**GEMMA, **(encoder or {})}, "decoder": GEMMA}
    changes = {"tie_word_embeddings": True, "vocab_size": VOCAB, **changes}
    config = transformers.T5GemmaConfig(**sides, **changes, attn_implementation="eager")
    return _enlarged(transformers.T5GemmaForConditionalGeneration(config))


def tiny_t5gemma2(seed: int = 0, **changes: Any) -> Any:
    """T5Gemma 2, whose token 33 has an embedding of its own; ``changes``: of both sides."""
    torch.manual_seed(seed)
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    side = {**GEMMA, "attn_logit_softcapping": None, "layer_types": types, **changes}
    vision: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    vision |= {"image_size": 16, "patch_size": 8, "model_type": "siglip_vision_model"}
    encoder = {"text_config": side, "vision_config": vision, "mm_tokens_per_image": 4, "eoi_token_index": 33}
    config = transformers.T5Gemma2Config(
        encoder=encoder, decoder=side, image_token_index=VOCAB - 1, attn_implementation="eager"
    )
    return _enlarged(transformers.T5Gemma2ForConditionalGeneration(config))


KINDS: dict[str, Callable[[], Any]] = {
    "t5": tiny_t5,
    "t5, of version 1.1": lambda: with_own_head(tiny_t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
    "mt5": partial(tiny_t5, "MT5"),
    "umt5": partial(tiny_t5, "UMT5"),
    "longt5, local": partial(tiny_t5, "LongT5", local_radius=5),
    "longt5": partial(
        tiny_t5,
        "LongT5",
        local_radius=5,
        global_block_size=4,
        encoder_attention_type="transient-global",
        feed_forward_proj="gated-gelu",
    ),
    "switch": tiny_switch,
    "switch, biased": partial(tiny_switch, router_bias=True, num_sparse_encoder_layers=2, dense_act_fn="gelu"),
    "bart": tiny_bart,
    "bart, scaled": partial(tiny_bart, scale_embedding=True, activation_function="relu"),
    "plbart": partial(tiny_bart, "PLBart"),
    "mbart": partial(tiny_bart, "MBart"),
    "mvp": partial(tiny_bart, "Mvp"),
    "marian": partial(tiny_bart, "Marian", activation_function="swish", scale_embedding=True),
    "pegasus": partial(tiny_bart, "Pegasus", scale_embedding=True, pad_token_id=0),
    "m2m100": partial(tiny_bart, "M2M100"),
    "seamless": partial(tiny_seamless, "v2ForTextToText"),
    "seamless, first": partial(tiny_seamless, "ForTextToText"),
    "fsmt": tiny_fsmt,
    "fsmt, tied": partial(tiny_fsmt, tie_word_embeddings=True),
    "blenderbot": partial(tiny_bart, "Blenderbot"),
    "blenderbot, small": partial(tiny_bart, "BlenderbotSmall"),
    "led": partial(
        tiny_bart,
        "LED",
        encoder_attention_heads=4,
        attention_window=[8, 4],
        max_encoder_position_embeddings=96,
        max_decoder_position_embeddings=64,
    ),
    "t5gemma": tiny_t5gemma,
    "t5gemma, uneven": partial(
        tiny_t5gemma,
        encoder={"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "sliding_window": 6},
        tie_word_embeddings=False,
    ),
    "t5gemma2": tiny_t5gemma2,
    "t5gemma2, odd": partial(tiny_t5gemma2, sliding_window=7, num_key_value_heads=4),
}


def encoded(tokens: Sequence[int]) -> bytes:
    """A text's tokens as the worker gets them."""
    return array("i", tokens).tobytes()


def logits_of(model: Any, text: Sequence[int], outputs: Sequence[int]) -> torch.Tensor:
    """float32 [outputs, vocabulary] behind each token of the decoder."""
    with torch.inference_mode():
        made = model(input_ids=torch.tensor([list(text)]), decoder_input_ids=torch.tensor([list(outputs)]))
    found: torch.Tensor = made.logits[0].float()
    return found
