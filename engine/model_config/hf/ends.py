"""The tokens that end a turn in models whose files name none: those of transformers' configuration classes."""

from collections.abc import Mapping
from typing import Final

from ..config_fields import Fields
from .text_part import TEXT_FIELDS
from .thinker import thinker

_BY_ENDS: Final[Mapping[tuple[int, ...], str]] = {
    (0,): "falcon_mamba mamba stablelm",
    (1,): "deepseek_v3 deepseek_v32 deepseek_v4 gemma gemma2 gemma3_text gemma3n_text gemma4_text gemma4_unified_text "
    "glm4_moe_lite glm_moe_dsa nanochat recurrent_gemma sarvam_mla sarvam_moe unlimited_ocr_text vaultgemma",
    (2,): "apertus apertus1p5_text aria_text bamba biogpt bloom chameleon deepseek_ocr2_text deepseek_v2 diffllama "
    "ernie4_5 ernie4_5_moe exaone4 falcon_h1 gpt_neox granite granite4_vision_text granitemoe granitemoe_swa "
    "granitemoehybrid granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe hunyuan_vl_text hyperclovax inkling_text "
    "internlm3 iquestcoder jamba jetmoe lfm2 lfm2_moe llama llama4_text longcat_flash mamba2 minicpm3 minimax "
    "ministral ministral3 mistral mistral4 mistral_large4_text mixtral nemotron_h opt paddleocr_vl_text persimmon phi "
    "phimoe seed_oss xglm zamba zamba2",
    (3,): "nemotron",
    (11,): "cosmos3_edge_text falcon",
    (53,): "exaone_moe",
    (106,): "zaya",
    (361,): "exaone",
    (31_999,): "gpt_neox_japanese",
    (32_000,): "phi3",
    (50_256,): "codegen gpt2 gpt_bigcode gpt_neo gptj starcoder2",
    (50_279,): "olmo olmo2 olmo3 olmoe",
    (50_282,): "modernbert-decoder",
    (59_246, 59_253, 59_255): "glmasr",
    (100_257,): "flex_olmo granite_docling_text granite_swa olmo_hybrid",
    (120_025,): "hy_v4 hy_v4_vl_text",
    (124_900,): "lfm3",
    (128_001,): "arcee bitnet mllama_text_model smollm3 youtu",
    (128_001, 128_008, 128_009): "cwm",
    (150_024,): "jais2",
    (151_329, 151_336, 151_338): "glm glm4",
    (151_643,): "lara_mini",
    (151_643, 151_645): "qwen3_asr",
    (151_645,): "qwen2_5_vl_text qwen2_vl_text",
    (151_668,): "dots3_note_text",
    (151_850,): "emu3_text_model",
    (156_895,): "bailing_hybrid",
    (163_586,): "kimi_linear",
    (163_691,): "axk1 axk2",
    (199_999, 200_020): "phi4_multimodal",
    (200_001,): "muse_glimmer_text muse_spark_text",
    (200_006,): "inkling2_loop_text inkling2_text",
    (200_020,): "minimax_m2 minimax_m3_vl_text",
    (255_001,): "cohere cohere2 cohere2_moe cohere_compass_text",
}
CLASS_ENDS: Final[Mapping[str, tuple[int, ...]]] = {
    kind: ends for ends, kinds in _BY_ENDS.items() for kind in kinds.split()
}
"""By model type, of a whole model or of its text part."""


def implied_ends(config: Mapping[str, object]) -> tuple[int, ...]:
    """Of a config.json; empty where it names ends itself, or says null, and for classes without."""
    fields = Fields(thinker(config))
    text: Mapping[str, object] = next((table for each in TEXT_FIELDS if (table := fields.table(each))), {})
    if "eos_token_id" in fields.values or "eos_token_id" in text:
        return ()
    kinds = (fields.text("model_type", ""), Fields(text).text("model_type", ""))
    return next((ends for kind in kinds if (ends := CLASS_ENDS.get(kind))), ())
