"""The names that Mistral's own files give to tensors (Mistral Large 3), which those of Mistral Large 4 keep."""

import re
from typing import Final

_OF_LAYER: Final = re.compile(
    r"layers\.\d+\.(?:attention|attention_norm|ffn_norm|feed_forward|shared_experts|experts|gate)\."
)
_OUTER: Final = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "lerope.alpha": "model.rotary_emb.alpha",
}
_HEAD: Final = "output."
_PARTS: Final = tuple(
    (re.compile(pattern), put)
    for pattern, put in (
        (r"\.attention_norm\.", ".input_layernorm."),
        (r"\.ffn_norm\.", ".post_attention_layernorm."),
        (r"\.attention\.", ".self_attn."),
        (r"\.wq\.", ".q_proj."),
        (r"(?<!\.indexer)\.w([kv])\.", r".\1_proj."),  # that of an index keeps its name
        (r"\.wq_a\.", ".q_a_proj."),
        (r"(?<!\.indexer)\.wq_b\.", ".q_b_proj."),  # so does that
        (r"\.q_a_norm\.", ".q_a_layernorm."),
        (r"\.wkv_a_with_mqa\.", ".kv_a_proj_with_mqa."),
        (r"\.wkv_b\.", ".kv_b_proj."),
        (r"\.wo\.", ".o_proj."),
        (r"\.kv_a_norm\.", ".kv_a_layernorm."),
        (r"\.ssmax_scaling\.s\Z", ".softmax_scaling.scale"),
        (r"\.ssmax_scaling\.b\Z", ".softmax_scaling.bias"),
        (r"\.feed_forward\.", ".mlp."),
        (r"\.(gate|experts|shared_experts)\.", r".mlp.\1."),
        (r"\.w1\.", ".gate_proj."),
        (r"\.w2\.", ".down_proj."),
        (r"\.w3\.", ".up_proj."),
    )
)


def usual_name(stored: str) -> str | None:
    """The name of a tensor of the text model in transformers; None if Mistral's files have no such tensor."""
    if stored in _OUTER:
        return _OUTER[stored]
    if stored.startswith(_HEAD):
        return f"lm_head.{stored.removeprefix(_HEAD)}"
    if _OF_LAYER.match(stored) is None:
        return None
    for pattern, put in _PARTS:
        stored = pattern.sub(put, stored)
    return f"model.{stored}"
