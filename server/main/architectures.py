"""Describes the supported decoders for ``docs/reference/models.md``, by reading a small config.json of each."""

from collections.abc import Mapping
from typing import Final

from stentor.engine.model_config.config_fields import Fields
from stentor.engine.model_config.gguf.mmproj_config import projector_names
from stentor.engine.model_config.hf import nemotron_omni
from stentor.engine.model_config.hf.config import DECODERS
from stentor.engine.model_config.hf.deepseek_ocr import is_deepseek_ocr
from stentor.engine.model_config.hf.draft_head import mtp_head_stored
from stentor.engine.model_config.hf.text_part import MEDIA_FAMILIES
from stentor.engine.model_config.spec.attention import AttentionSpec
from stentor.engine.model_config.spec.compressed_attention import CompressedAttentionSpec
from stentor.engine.model_config.spec.latent_attention import LatentAttentionSpec
from stentor.engine.model_config.spec.mlp import MoESpec
from stentor.engine.model_config.spec.model import ModelSpec, checked
from stentor.engine.model_config.towers.audio_hf import NATIVE_ENCODERS
from stentor.engine.model_config.towers.vision_hf import NATIVE_TOWERS

from .tested import MEDIA, PARITY, TEXT_ALONE
from .tested_formats import FORMATS

_SMALL: Final[Mapping[str, object]] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "num_experts_per_tok": 2,
}
"""Fields for every reader."""
_GEMMA4: Final = {
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
}
_GEMMA4_UNIFIED: Final = {"layer_types": ["sliding_attention", "full_attention"] * 2}
_GEMMA3N: Final = {
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
    "num_kv_shared_layers": 2,
}
_BLOCK: Final = {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 2.0}}
_STEP: Final = {
    "layer_types": ["full_attention", "sliding_attention"] * 2,
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "sliding_window": 24,
    "swiglu_limits_shared": [0.0, 0.0, 0.0, 16.0],
    "num_nextn_predict_layers": 1,
}
_STEP5: Final = {
    **{"layer_types": ["full_attention", "sliding_attention"] * 2 + ["sliding_attention"], "sliding_window": 24},
    "use_head_wise_attn_gate": True,
    **{"use_moe_router_bias": True, "sparse_config": {"num_provider_groups": 2, "topk": 3}},
    **{"num_nextn_predict_layers": 1, "swiglu_limits_shared": [0.0, 0.0, 0.0, 16.0, 0.0]},
}
_K2_HORIZON: Final = {
    **{"rope_head_dim": 8, "query_key_norm": True, "layernorm_num_groups": 4, "attention_gate_func": "silu"},
    **{
        "num_experts": 4,
        "router_score_func": "sigmoid",
        "moe_gate_bias": True,
        "mova_num_experts": 4,
        "mova_num_experts_per_tok": 2,
    },
}
_STEP3: Final = {"moe_layers_enum": "1,2,3"}
_VERSION: Final = {"version": 4.5}
_HEAD: Final = {"num_nextn_predict_layers": 1}
_QWEN4: Final = {
    "ple_layer_ids": [1],
    "eos_token_id": 2,
    "ngram_vocab_size_base": 50,
    "split_ngram_parts": 1,
    "indexer_budget": 128,
    "indexer_compress_ratio": 4,
}
_KIMI_K3: Final[Mapping[str, object]] = {
    **{"attn_res_block_size": 2, "hidden_act": "situ"},
    **{"activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0},
}
_ALICE: Final = {
    **{"layer_types": ["linear_attention", "full_attention"] * 2, "block_attn_res_block_size": 2},
    **{"num_experts": 4, "shared_expert_intermediate_size": 32, "linear_num_value_heads": 16},
    **{"kda_allow_negative_eigenvalues": False, "router_score_function": "sigmoid", "router_bias_correction": True},
}
_WHOLE, _HALF, _QUARTER = ({"type": "mrope", "mrope_section": each} for each in ([4, 2, 2], [2, 1, 1], [1, 1, 0]))
_TURNED: Final = (
    *("Cosmos3Edge", "Cosmos3Omni", "Glm4v", "Glm46V", "GlmOcr", "Keye", "KeyeVL1_5", "PaddleOCRVL"),
    *("Qwen2VL", "Qwen2_5Omni", "Qwen2_5OmniThinker", "Qwen2_5_VL"),
    *("Qwen3OmniMoe", "Qwen3OmniMoeThinker", "Qwen3VL", "Qwen3VLMoe"),
)
_LOOP: Final = {"n_layers_per_attn_res_block": 1, "loop_layer_index_start": 1, "loop_layer_index_end": 3}
_DEEPSEEK41: Final[Mapping[str, object]] = {
    **{"num_key_value_heads": 1, "qk_rope_head_dim": 8, "o_groups": 2},
    **{"compress_ratios": [0, 2, 1, 1], "kv_source_layer_ids": [1, 2], "index_source_layer_ids": [1, 2, 3]},
    **{"candidate_source_layer_id": 2, "candidate_block_size": 8, "candidate_topk_blocks": 64},
    **{"engram_layer_ids": [1], "engram_num_embeddings": [500], "engram_max_ngram_size": 3, "engram_n_heads": 2},
    **{"engram_vocab_size": 50, "engram_head_dim": 8, "engram_compressed_vocab_size": 32},
    **{"dspark_target_layer_ids": [2, 3], "dspark_block_size": 4, "dspark_noise_token_id": 2},
}
_MORE: Final[Mapping[str, Mapping[str, object]]] = {
    "AliceAIForCausalLM": _ALICE,
    "CodeGenForCausalLM": {"rotary_dim": 8},
    "CohereCompassForCausalLM": {"rope_parameters": {"full_attention": None}},
    "CohereCompassForConditionalGeneration": {"rope_parameters": {"full_attention": None}},
    "DoryForCausalLM": {"n_input_layers": 1, "n_output_layers": 1},
    "ZayaForCausalLM": {"num_experts_per_tok": 1},
    **{name: {"dense_mlp_idx": 1} for name in ("InklingForCausalLM", "InklingForConditionalGeneration")},
    **{
        f"Inkling2{kind}For{which}": {"layer_types": ["hybrid_sliding", "hybrid"] * 2, **more}
        for kind, more in (("", {}), ("Loop", _LOOP))
        for which in ("CausalLM", "ConditionalGeneration")
    },
    **{f"DeepseekOCR{which}ForCausalLM": {"use_mla": False, "model_type": "deepseek_v2"} for which in ("", "2")},
    "UnlimitedOCRForCausalLM": {"model_type": "unlimited_ocr_text"},
    "Lfm2ForCausalLM": {"full_attn_idxs": [2]},
    "Lfm2MoeForCausalLM": {"full_attn_idxs": [2]},
    "GraniteMoeHybridForCausalLM": {"layer_types": ["mamba", "attention"] * 2, "mamba_n_heads": 4},
    "DeciLMForCausalLM": {"block_configs": [_BLOCK] * 4},
    "BambaForCausalLM": {"attn_layer_indices": [1], "mamba_n_heads": 4},
    **{
        name: {"layer_types": ["full_attention", "minimax_m3_sparse"] * 2, "index_n_heads": 2}
        for name in ("MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration", "MiniMaxM3VLForCausalLM")
    },
    "Zamba2ForCausalLM": {"layers_block_type": ["linear_attention", "hybrid"] * 2},
    **{
        f"Kimi{which}": {"layer_types": ["linear_attention", "full_attention"] * 2, "num_key_value_heads": 4, **more}
        for which, more in (("K3ForConditionalGeneration", _KIMI_K3), ("LinearForCausalLM", {}))
    },
    "BailingHybridForCausalLM": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "BailingMoeV2_5ForCausalLM": {"layer_group_size": 2},
    "BailingMoeV3ForCausalLM": {
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "share_expert_swiglu_limit_list": [0.0, 0.0, 0.0, 16.0],
    },
    "Mamba2ForCausalLM": {"num_heads": 8},
    **{
        name: {"hybrid_override_pattern": "M*-E", "mtp_hybrid_override_pattern": "*E", **_HEAD}
        for name in ("NemotronHForCausalLM", "NemotronH_Nano_VL_V2", *nemotron_omni.ARCHITECTURES)
    },
    "NemotronHPuzzleForCausalLM": {
        "block_configs": [{"block_type": kind} for kind in ("mamba", "attention", "moe", "moe")],
        **_HEAD,
    },
    "DeepseekForCausalLM": {"n_routed_experts": 4, "n_shared_experts": 1},
    "FalconH1ForCausalLM": {"mlp_multipliers": [0.8, 0.6]},
    "HunYuanMoEV1ForCausalLM": {"num_experts": 4},
    "CohereForCausalLM": {"use_qk_norm": True},
    "DeepseekV4ForCausalLM": {"num_key_value_heads": 1, "qk_rope_head_dim": 8, "o_groups": 2},
    **{f"DeepseekV41For{which}": _DEEPSEEK41 for which in ("CausalLM", "ConditionalGeneration")},
    **{
        f"Glm5NextFor{which}": {
            "layer_types": ["linear_attention", "indexed_attention", "indexed_attention", "linear_attention"],
            "indexer_types": ["full", "full", "shared", "full"],
            "num_key_value_heads": 4,
        }
        for which in ("CausalLM", "ConditionalGeneration")
    },
    "GPTJForCausalLM": {"rotary_dim": 8},
    "DbrxForCausalLM": {"attn_config": {"clip_qkv": 0.5}},
    "MptForCausalLM": {"attn_config": {"clip_qkv": 0.5}},
    "MPTForCausalLM": {"attn_config": {"clip_qkv": 0.5}},
    **dict.fromkeys(("MiniCPMO", "MiniCPMV"), _VERSION),
    "Ovis2_6_MoeForCausalLM": {"model_type": "qwen3_moe"},
    **{f"MllamaFor{which}": {"cross_attention_layers": [1]} for which in ("CausalLM", "ConditionalGeneration")},
    "OpenPanguVLForConditionalGeneration": {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}},
    "OlmoForCausalLM": {"clip_qkv": 0.5},
    **dict.fromkeys(("Ernie4_5_MoeForCausalLM", "Exaone4_5_ForConditionalGeneration", "MellumForCausalLM"), _HEAD),
    **dict.fromkeys(("Step3TextForCausalLM", "Step3VLForConditionalGeneration"), _STEP3),
    "Step3p5ForCausalLM": _STEP,
    "Step3p7ForConditionalGeneration": _STEP,
    "LongcatFlashNgramForCausalLM": {
        "ngram_vocab_size_ratio": 2,
        "emb_neighbor_num": 3,
        "emb_split_num": 2,
        "eos_token_id": 2,
    },
    "K2HorizonForCausalLM": _K2_HORIZON,
    **dict.fromkeys(("Step5ForCausalLM", "Step5ForConditionalGeneration"), _STEP5),
    "MiMoV2ForCausalLM": {
        "v_head_dim": 8,
        "partial_rotary_factor": 0.5,
        "attention_projection_layout": "fused_qkv",
        "layernorm_epsilon": 1e-5,
    },
    "MiMoV2FlashForCausalLM": {"v_head_dim": 8, "partial_rotary_factor": 0.5},
    "PhiForCausalLM": {"qk_layernorm": True},
    **{name: {"qk_layernorm": True} for name in ("StableLmForCausalLM", "StableLMEpochForCausalLM")},
    "SolarForCausalLM": {"bskcn_1": [1], "bskcn_2": [1], "bskcn_3": [2], "bskcn_4": [3], "bskcn_tv": [0.9, 0.8]},
    "Plamo3ForCausalLM": {"window_size": 24, "rope_theta": 10000},
    "DomynEdgeForCausalLM": {
        "position_layers": ["rope", "nope"] * 2,
        "window_sizes": [[24, 0], [-1, 0]] * 2,
        "head_sizes": [16, 32] * 2,
    },
    "Rnj1ForCausalLM": {"layer_types": ["full_attention"] * 4},
    "NanbeigeForCausalLM": {"num_loops": 2},
    "Glm4vMoeForConditionalGeneration": {"partial_rotary_factor": 0.5, "rope_scaling": _HALF},
    **{f"{name}ForConditionalGeneration": {"rope_scaling": _WHOLE} for name in _TURNED},
    **{f"MiniCPM{which}ForConditionalGeneration": {"rope_scaling": _QUARTER} for which in ("Ocr", "V4_6", "V4_7")},
    "Qwen2_5OmniModel": {"rope_scaling": _WHOLE},
    "Qwen3_5ForConditionalGeneration": {"rope_scaling": _QUARTER},
    **{
        f"{name}ForConditionalGeneration": {"model_type": "qwen3_5_moe_text", "rope_scaling": _QUARTER}
        for name in ("InternS2Preview", "Qwen3_5Moe")
    },
    "Qwen4ExpForCausalLM": _QWEN4,
    "Qwen4ExpForConditionalGeneration": {**_QWEN4, "rope_scaling": _QUARTER},
    "HunYuanVLForConditionalGeneration": {"rope_scaling": {"type": "xdrope", "xdrope_section": [2] * 4, "alpha": 9.0}},
    "Ernie4_5_VLMoeForConditionalGeneration": {
        "moe_intermediate_size": [96, 48],
        "moe_num_experts": 4,
        "moe_k": 2,
        "rope_scaling": {"type": "mrope", "mrope_section": [3, 3, 2]},
    },
    "Gemma3nForCausalLM": _GEMMA3N,
    "Gemma3nForConditionalGeneration": _GEMMA3N,
    "Gemma4ForCausalLM": _GEMMA4,
    "Gemma4ForConditionalGeneration": _GEMMA4,
    "Gemma4UnifiedForCausalLM": _GEMMA4_UNIFIED,
    "Gemma4UnifiedForConditionalGeneration": _GEMMA4_UNIFIED,
}
"""Further fields of an architecture, with every optional feature enabled."""
_REMARKS: Final[Mapping[str, str]] = {
    "DeciLMForCausalLM": "Llama Nemotron Super and Ultra",
    "MiniCPMO": "sounds are not taken, and answers are text",
    "MiniCPMV": "2.6, 4.0 and 4.5",
    "MiniCPMForCausalLM": "attention is dense, whatever sparse_config allows",
    "GptOssForCausalLM": "one tool call a turn",
    "NanbeigeForCausalLM": "also those whose layers run once",
    "QWenLMHeadModel": "texts of at most seq_length tokens",
    "Rnj1ForCausalLM": "layers with full attention alone",
    "GraniteMoeHybridForCausalLM": "also without recurrent layers, and without experts",
    "JambaForCausalLM": "also without experts",
    "NemotronHForCausalLM": "also without experts",
    "DeepseekV41ForCausalLM": "without a tower",
    "DeepseekV41ForConditionalGeneration": "files name DeepseekV41ForCausalLM",
    **dict.fromkeys(
        ("Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration"),
        "prompt and answer of at most indexer_budget + indexer_compress_ratio - 1 tokens",
    ),
    "Ernie4_5_VLMoeForConditionalGeneration": "files in transformers' form; no video",
    "Gemma3nForConditionalGeneration": "images too where timm is installed, without a test",
    "Gemma4ForCausalLM": "also without experts",
    "Gemma4ForConditionalGeneration": "also without experts; small models encode media in transformers' code",
}
"""Remarks that do not follow from the spec."""


def described(architecture: str) -> ModelSpec:
    """The spec that its reader makes of a small config.json."""
    values = {**_SMALL, **_MORE.get(architecture, {})}
    fields = Fields({**values, "text_config": values})
    return checked(DECODERS[architecture].read(fields, architecture))


def kinds(spec: ModelSpec) -> list[str]:
    """Kinds of its layers beyond attention and a dense MLP, or ``["dense"]``."""
    found = []
    if any(isinstance(layer.mixer, LatentAttentionSpec) for layer in spec.layers):
        found.append("latent attention")
    if any(isinstance(layer.mixer, CompressedAttentionSpec) for layer in spec.layers):
        found.append("compressed attention")
    elif any(
        layer.beside or not isinstance(layer.mixer, AttentionSpec)
        for layer in map(spec.layers.__getitem__, spec.states)
    ):
        found.append("recurrent")
    elif spec.states:
        found.append("attention with states")
    if any(layer.picture_gates is not None for layer in spec.layers):
        found.append("attention to pictures")
    if any(isinstance(network, MoESpec) for layer in spec.layers for network in layer.networks):
        found.append("experts")
    return found or ["dense"]


def takes(architecture: str) -> str:
    """Input besides text, such as ``images, video``; "" for text alone."""
    return MEDIA_FAMILIES[architecture].takes if architecture in MEDIA_FAMILIES else ""


def computed(spec: ModelSpec) -> str:
    """How a CPU runs its steps."""
    from stentor.engine.worker.recorded import calls_of  # late: torch

    calls = calls_of(spec)
    return f"program, calls for {', '.join(calls)}" if calls else "program"


def parity_models(architecture: str) -> list[str]:
    """Names of the parity tests' models of it, or of an architecture with the same reader."""
    read = DECODERS[architecture].read
    alike = [architecture, *(name for name in DECODERS if DECODERS[name].read is read)]
    alone = [TEXT_ALONE[architecture]] if architecture in TEXT_ALONE else []
    return [*next((PARITY[name] for name in alike if name in PARITY), ()), *alone, *MEDIA.get(architecture, ())]


def tested_formats(architecture: str) -> list[str]:
    """Formats of weights that tests cover for it."""
    found = ["float"] if parity_models(architecture) else []
    return [*found, *(each.format for each in FORMATS.get(architecture, ()))]


def _encodes(architecture: str) -> bool:
    """Whether its media are encoded on our own layers."""
    native = MEDIA_FAMILIES[architecture].model_type in NATIVE_TOWERS | NATIVE_ENCODERS
    return native and not is_deepseek_ocr({"architectures": [architecture]})


def remarks(architecture: str, spec: ModelSpec) -> list[str]:
    """Limitations and other remarks."""
    found = []
    if spec.text_part and not takes(architecture):
        found.append("its text alone is served")
    elif spec.text_part and not _encodes(architecture):
        found.append("media are encoded in transformers' code")
    if spec.text_part and (projectors := projector_names(MEDIA_FAMILIES[architecture].model_type)):
        found.append(f"in GGUF files with mmproj of {' or '.join(projectors)}")
    if mtp_head_stored(spec):
        found.append("may have a head for multi-token prediction")
    elif spec.stages is not None:
        found.append("may have stages that draft blocks")
    elif spec.mtp is None and (spec.draft_layers or spec.draft_prefix):
        found.append("layers for multi-token prediction are ignored")
    if not parity_models(architecture):
        found.append("no parity test")
    if architecture in _REMARKS:
        found.append(_REMARKS[architecture])
    return found
