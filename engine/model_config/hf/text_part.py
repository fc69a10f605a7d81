"""The text part of multimodal models: their config.json contains a decoder's. :mod:`.text_names` names its tensors."""

from collections.abc import Mapping
from functools import partial
from typing import Final

from msgspec.structs import replace

from ..config_fields import ConfigError, Fields
from ..spec.model import ModelSpec, with_mixers
from . import deepseek41 as hf_deepseek41
from . import nemotron_omni
from .media_families import OF_SOUNDS, MediaFamily
from .text_defaults import text_defaults
from .text_readers import PARTS, Reader
from .thinker import thinker

COLQWEN3: Final = ("colqwen3", "ops_colqwen3")
"""Model types of retrievers that are described as the Qwen3-VL within them."""
NEMOTRON_COLEMBED: Final = "qwen3_vl_nemotron_embed"
"""That of NVIDIA's retrievers, likewise."""
COLQWEN3_5: Final = "colqwen3_5"
"""That of ColQwen3.5, whose files may also name its Qwen3.5's."""
JINA_V4: Final = "JinaEmbeddingsV4Model"
"""The architecture of jina-embeddings-v4, whose files describe its Qwen2.5-VL."""
NEMOTRON_EMBED: Final = ("llama_nemotron_vl", "llama_nemotron_vl_rerank")
"""Model types of NVIDIA's embedders and rerankers of pictures."""
_QWEN_VL_TOKENS: Final = {
    "image_token_id": 151_655,
    "video_token_id": 151_656,
    "vision_start_token_id": 151_652,
    "vision_end_token_id": 151_653,
}
"""Defaults."""


def _sees_pictures_whole(spec: ModelSpec, *, windows_alone: bool) -> ModelSpec:
    """The spec with bidirectional attention within pictures, in all layers, or in those with a window and within it."""
    chosen = [bool(layer.attention.window) or not windows_alone for layer in spec.layers]
    return with_mixers(spec, chosen, whole_spans=True, windowed_spans=windows_alone)


_GRANITE4: Final = "granite4_vision_text"
_SCALING: Final = ("granite", "hyperclovax")
"""Beginnings of model types whose decoders also scale embeddings of media, but for :data:`_GRANITE4`."""
TEXT_FIELDS: Final = ("text_config", "llm_config", "language_config")
_OTHER_NAMES: Final[Mapping[str, str]] = {"kimi_k2": "deepseek_v3"}
"""Model types in published files that stand for others."""


_FAMILIES: Final[Mapping[str, MediaFamily]] = {
    "Apertus1p5ForConditionalGeneration": MediaFamily("apertus1p5", "apertus1p5_text", "images, audio"),
    "AriaForConditionalGeneration": MediaFamily("aria", "aria_text"),
    "AyaVisionForConditionalGeneration": MediaFamily("aya_vision", "cohere2"),
    "BailingMoeV3VLForConditionalGeneration": MediaFamily("bailing_moe_v3_vl", "bailing_moe_v3_vl_text", own_text=True),
    "BeeForConditionalGeneration": MediaFamily("bee", "qwen3"),
    "Blip2ForConditionalGeneration": MediaFamily("blip-2", "opt", tied_by_text=True),
    "ChameleonForConditionalGeneration": MediaFamily("chameleon", "chameleon"),
    "Cohere2VisionForConditionalGeneration": MediaFamily("cohere2_vision", "cohere2"),
    "CohereCompassForConditionalGeneration": MediaFamily("cohere_compass", "cohere_compass_text", takes=""),
    "Cosmos3EdgeForConditionalGeneration": MediaFamily("cosmos3_edge", "cosmos3_edge_text", "images, video"),
    "Cosmos3OmniForConditionalGeneration": MediaFamily("cosmos3_omni", "qwen3_vl_text", "images, video"),
    "DeepseekVLV2ForCausalLM": MediaFamily("deepseek_vl_v2", "deepseek_v2"),  # before others, as files name none
    "DeepseekOCR2ForCausalLM": MediaFamily("deepseek_vl_v2", "deepseek_v2"),
    "DeepseekOCRForCausalLM": MediaFamily("deepseek_vl_v2", "deepseek_v2"),
    "DeepseekOcr2ForConditionalGeneration": MediaFamily("deepseek_ocr2", "deepseek_ocr2_text"),
    "DeepseekVLForConditionalGeneration": MediaFamily("deepseek_vl", "llama"),
    "DeepseekVLHybridForConditionalGeneration": MediaFamily("deepseek_vl_hybrid", "llama"),
    "DotsOCRForCausalLM": MediaFamily("dots_ocr", "qwen2"),
    "Dots3NoteForConditionalGeneration": MediaFamily("dots3_note", "dots3_note_text", takes=""),
    "Eagle2_5_VLForConditionalGeneration": MediaFamily("eagle_2_5_vl", "qwen2"),
    "Emu3ForConditionalGeneration": MediaFamily("emu3", "emu3_text_model"),
    "Ernie4_5_VLMoeForConditionalGeneration": MediaFamily("ernie4_5_vl_moe", "ernie4_5_vl_moe_text"),
    "Exaone4_5_ForConditionalGeneration": MediaFamily("exaone4_5", "exaone4"),
    "FastVlmForConditionalGeneration": MediaFamily("fast_vlm", "qwen2"),
    "FuyuForCausalLM": MediaFamily("fuyu", "persimmon"),
    "Gemma3ForConditionalGeneration": MediaFamily("gemma3", "gemma3_text"),
    "Gemma3nForConditionalGeneration": MediaFamily("gemma3n", "gemma3n_text", "audio"),
    "Gemma4ForConditionalGeneration": MediaFamily("gemma4", "gemma4_text", "images, video, audio"),
    "Gemma4UnifiedForConditionalGeneration": MediaFamily(
        "gemma4_unified", "gemma4_unified_text", "images, video, audio"
    ),
    "GLM4VForCausalLM": MediaFamily("chatglm_4v", "chatglm_4v_text", own_text=True),
    "Glm46VForConditionalGeneration": MediaFamily("glm46v", "glm4v_text", "images, video"),
    "Glm4vForConditionalGeneration": MediaFamily("glm4v", "glm4v_text", "images, video"),
    "Glm4vMoeForConditionalGeneration": MediaFamily("glm4v_moe", "glm4v_moe_text", "images, video"),
    "Glm5NextForConditionalGeneration": MediaFamily("glm5_next", "glm5_next_text"),
    "GlmOcrForConditionalGeneration": MediaFamily("glm_ocr", "glm_ocr_text"),
    "GotOcr2ForConditionalGeneration": MediaFamily("got_ocr2", "qwen2"),
    "Granite4VisionForConditionalGeneration": MediaFamily("granite4_vision", _GRANITE4),
    "GraniteDoclingForConditionalGeneration": MediaFamily("granite_docling", "granite_docling_text"),
    "H2OVLChatModel": MediaFamily("h2ovl_chat", "llama"),
    "HunYuanVLForConditionalGeneration": MediaFamily("hunyuan_vl", "hunyuan_vl_text"),
    "HYV4VLForConditionalGeneration": MediaFamily("hy_v4_vl", "hy_v4_vl_text", "images, video"),
    "HyperCLOVAXVisionV2ForConditionalGeneration": MediaFamily("hyperclovax_vision_v2", "hyperclovax"),
    "Idefics2ForConditionalGeneration": MediaFamily("idefics2", "mistral"),
    "Idefics3ForConditionalGeneration": MediaFamily("idefics3", "llama"),
    "InklingForConditionalGeneration": MediaFamily("inkling_mm_model", "inkling_text", "images, audio"),
    "Inkling2ForCausalLM": MediaFamily("inkling2_text", "inkling2_text", takes=""),
    "Inkling2ForConditionalGeneration": MediaFamily("inkling2", "inkling2_text"),
    "Inkling2LoopForCausalLM": MediaFamily("inkling2_loop_text", "inkling2_loop_text", takes=""),
    "Inkling2LoopForConditionalGeneration": MediaFamily(
        "inkling2_loop", "inkling2_loop_text", of_whole=("quantization_config",)
    ),
    "InternVLChatModel": MediaFamily("internvl_chat", "qwen2"),
    "InternVLForConditionalGeneration": MediaFamily("internvl", "qwen2", "images, video"),
    "IsaacForConditionalGeneration": MediaFamily("isaac", "isaac_text", own_text=True),
    "JanusForConditionalGeneration": MediaFamily("janus", "llama"),
    "KeyeForConditionalGeneration": MediaFamily("keye", "keye_text"),
    "KeyeVL1_5ForConditionalGeneration": MediaFamily("keye_vl1_5", "keye_text"),
    "KimiK25ForConditionalGeneration": MediaFamily("kimi_k25", "deepseek_v3"),
    "KananaVForConditionalGeneration": MediaFamily("kanana-1.5-v", "llama", own_text=True, tied_by_text=True),
    "KimiK3ForConditionalGeneration": MediaFamily("kimi_k3", "kimi_linear"),
    "KimiVLForConditionalGeneration": MediaFamily("kimi_vl", "deepseek_v3"),
    "Kimi_K25ForConditionalGeneration": MediaFamily("kimi_k25", "deepseek_v3"),
    "Lfm2VlForConditionalGeneration": MediaFamily("lfm2_vl", "lfm2"),
    "Lfm3VlForConditionalGeneration": MediaFamily("lfm3_vl", "lfm3"),
    "LightOnOcrForConditionalGeneration": MediaFamily("lighton_ocr", "qwen3"),
    "Llama4ForConditionalGeneration": MediaFamily("llama4", "llama4_text", tied_by_text=True),
    "Llama_Nemotron_Nano_VL": MediaFamily("Llama_Nemotron_Nano_VL", "llama"),
    "LlavaForConditionalGeneration": MediaFamily("llava", "llama"),
    "LlavaNextForConditionalGeneration": MediaFamily("llava_next", "llama"),
    "LlavaNextVideoForConditionalGeneration": MediaFamily("llava_next_video", "llama", "images, video"),
    "LlavaOnevisionForConditionalGeneration": MediaFamily("llava_onevision", "qwen2", "images, video"),
    "LlavaOnevision2ForConditionalGeneration": MediaFamily("llava_onevision2", "qwen3"),
    "MiniCPMOcrForConditionalGeneration": MediaFamily("minicpm_ocr", "qwen3_5_text"),
    "MiniCPMO": MediaFamily("minicpmo", "minicpmv_text"),
    "MiniCPMV": MediaFamily("minicpmv", "minicpmv_text"),
    "MiniCPMV4_6ForConditionalGeneration": MediaFamily("minicpmv4_6", "qwen3_5_text"),
    "MiniCPMV4_7ForConditionalGeneration": MediaFamily("minicpmv4_7", "qwen3_5_text"),
    "MiniMaxM3SparseForConditionalGeneration": MediaFamily("minimax_m3_vl", "minimax_m3_vl_text"),
    "Mistral3ForConditionalGeneration": MediaFamily("mistral3", "mistral"),
    "MiMoV2ForCausalLM": MediaFamily("mimo_v2", "mimo_v2", takes=""),
    "MolmoForCausalLM": MediaFamily("molmo", "molmo"),
    "Molmo2ForConditionalGeneration": MediaFamily("molmo2", "molmo2_text", "images, video"),
    "DeepseekV41ForConditionalGeneration": MediaFamily(
        "deepseek_v41",
        "deepseek_v41",
        own_text=True,
        of_whole=("image_token_id", "vision_config"),
        as_stored=hf_deepseek41.beside_a_tower,
    ),
    "MllamaForConditionalGeneration": MediaFamily("mllama", "mllama_text_model"),
    "MuseGlimmerForConditionalGeneration": MediaFamily("muse_glimmer", "muse_glimmer_text"),
    "MuseSparkForConditionalGeneration": MediaFamily("muse_spark", "muse_spark_text"),
    "MistralLarge3ForCausalLM": MediaFamily("mistral_large3", "mistral_large3", takes=""),
    "MistralLarge4ForConditionalGeneration": MediaFamily("mistral_large4", "mistral_large4_text"),
    "NemotronH_Nano_VL_V2": MediaFamily("NemotronH_Nano_VL_V2", "nemotron_h"),
    **{
        name: MediaFamily(kind, "nemotron_h", "images, video, audio")
        for name, kind in nemotron_omni.MODEL_TYPES.items()
    },
    "NVLM_D": MediaFamily("NVLM_D", "qwen2"),
    "OpenCUAForConditionalGeneration": MediaFamily("opencua", "qwen2"),
    "OpenPanguVLForConditionalGeneration": MediaFamily("openpangu_vl", "openpangu_vl_text", own_text=True),
    "Ovis": MediaFamily("ovis", "qwen2"),
    "Ovis2_5": MediaFamily("ovis2_5", "qwen3", "images, video"),
    "Ovis2ForConditionalGeneration": MediaFamily("ovis2", "qwen2"),
    "PaddleOCRVLForConditionalGeneration": MediaFamily("paddleocr_vl", "paddleocr_vl_text"),
    "PixtralForConditionalGeneration": MediaFamily("mistral_pixtral", "mistral_own"),
    "Phi3VForCausalLM": MediaFamily("phi3_v", "phi3"),
    "Phi4ForCausalLMV": MediaFamily("phi4_siglip", "phi3"),
    "Phi4MMForCausalLM": MediaFamily("phi4mm", "phi3"),
    "Phi4MultimodalForCausalLM": MediaFamily("phi4_multimodal", "phi3"),
    "PaliGemmaForConditionalGeneration": MediaFamily("paligemma", "gemma", whole_prompts=True),
    "PerceptionLMForConditionalGeneration": MediaFamily("perception_lm", "llama", "images, video"),
    "QianfanOCRForConditionalGeneration": MediaFamily("qianfan_ocr", "qwen3"),
    "Qwen2_5OmniModel": MediaFamily("qwen2_5_omni", "qwen2_5_omni_text", "images, video, audio"),
    "Qwen2_5OmniForConditionalGeneration": MediaFamily("qwen2_5_omni", "qwen2_5_omni_text", "images, video, audio"),
    "Qwen2_5OmniThinkerForConditionalGeneration": MediaFamily(
        "qwen2_5_omni_thinker", "qwen2_5_omni_text", "images, video, audio"
    ),
    "Qwen2VLForConditionalGeneration": MediaFamily("qwen2_vl", "qwen2_vl_text", "images, video"),
    "Qwen2_5_VLForConditionalGeneration": MediaFamily("qwen2_5_vl", "qwen2_5_vl_text", "images, video"),
    "Qwen3OmniMoeForConditionalGeneration": MediaFamily(
        "qwen3_omni_moe", "qwen3_omni_moe_text", "images, video, audio"
    ),
    "Qwen3OmniMoeThinkerForConditionalGeneration": MediaFamily(
        "qwen3_omni_moe_thinker", "qwen3_omni_moe_text", "images, video, audio"
    ),
    "Qwen3VLForConditionalGeneration": MediaFamily("qwen3_vl", "qwen3_vl_text", "images, video"),
    "Qwen3VLMoeForConditionalGeneration": MediaFamily("qwen3_vl_moe", "qwen3_vl_moe_text", "images, video"),
    "Qwen3_5ForConditionalGeneration": MediaFamily("qwen3_5", "qwen3_5_text", "images, video"),
    "Qwen3_5MoeForConditionalGeneration": MediaFamily("qwen3_5_moe", "qwen3_5_moe_text", "images, video"),
    "Qwen4ExpForConditionalGeneration": MediaFamily("qwen4_exp", "qwen4_exp_text", "images, video"),
    "RForConditionalGeneration": MediaFamily("r_4b", "qwen3"),
    "SmolVLMForConditionalGeneration": MediaFamily("smolvlm", "llama", "images, video"),
    "Step3VLForConditionalGeneration": MediaFamily("step3_vl", "step3_text", takes=""),
    "Step3p7ForConditionalGeneration": MediaFamily("step3p7", "step3p5"),
    "Step5ForConditionalGeneration": MediaFamily("step5_vl", "step5"),
    "StepVLForConditionalGeneration": MediaFamily("step_vl", "qwen3"),
    "UnlimitedOcrForConditionalGeneration": MediaFamily("unlimited_ocr", "unlimited_ocr_text"),
    "UnlimitedOCRForCausalLM": MediaFamily(
        "unlimited-ocr", "unlimited_ocr_text", own_text=True, of_whole=("sliding_window", "rswa_window")
    ),
    "VideoLlama3ForConditionalGeneration": MediaFamily("video_llama_3", "qwen2", "images, video"),
    "VideoLlavaForConditionalGeneration": MediaFamily("video_llava", "llama", "images, video"),
    "VipLlavaForConditionalGeneration": MediaFamily("vipllava", "llama"),
}
ALIASES: Final[Mapping[str, str]] = {
    "Cosmos3ForConditionalGeneration": "Cosmos3OmniForConditionalGeneration",
    "HCXVisionV2ForCausalLM": "HyperCLOVAXVisionV2ForConditionalGeneration",
    "InternS1ForConditionalGeneration": "InternVLForConditionalGeneration",
    "InternS2PreviewForConditionalGeneration": "Qwen3_5MoeForConditionalGeneration",
    "LightOnOCRForConditionalGeneration": "LightOnOcrForConditionalGeneration",
    "MuseGlimmerForCausalLM": "MuseGlimmerForConditionalGeneration",
    **dict.fromkeys(("Ovis2_6ForCausalLM", "Ovis2_6_MoeForCausalLM"), "Ovis2_5"),
    "SkyworkR1VChatModel": "InternVLChatModel",
}
"""Architectures whose files are those of others, but for the names of architecture and model type."""
_NAMED: Final = {**_FAMILIES, **OF_SOUNDS}
_SHARED: Final = {name: _NAMED[other] for name, other in ALIASES.items()}
MEDIA_FAMILIES: Final[Mapping[str, MediaFamily]] = {**_NAMED, **_SHARED}
"""By architecture."""
_TYPED_HERE: Final = (
    *_SHARED,
    "GLM4VForCausalLM",
    "H2OVLChatModel",
    "Phi4ForCausalLMV",
    *(f"{name}ForConditionalGeneration" for name in ("Bee", "FunASR", "Keye", "KeyeVL1_5", "R", "StepVL")),
)
"""Architectures that determine the model type."""
_SEEING: Final = {
    **dict.fromkeys(("ChatGLMModel", "ChatGLMForConditionalGeneration"), "GLM4VForCausalLM"),
    "DeepseekV41ForCausalLM": "DeepseekV41ForConditionalGeneration",
}
"""What an architecture is called here if its files describe a vision tower."""


def text_reader(family: MediaFamily, known: Mapping[str, Reader]) -> Reader:
    """The reader of a text part; ``known``: readers of text-only models by model type."""
    return partial(_text, family, {**known, **PARTS})


def _text(family: MediaFamily, readers: Mapping[str, Reader], fields: Fields, name: str) -> ModelSpec:
    """The text part. End tokens and head tying may be in the whole model's fields, as all text fields are in old
    files."""
    fields = Fields(thinker(fields.values))
    text = next((table for each in TEXT_FIELDS if (table := fields.table(each))), None)
    kind = family.text
    if text is None and fields.has("hidden_size"):
        text = fields.values
    elif text is not None and not family.own_text:
        kind = Fields(text).text("model_type", kind)
        kind = _OTHER_NAMES.get(kind, kind)
    if text is None:
        raise ConfigError("text_config is missing, expected a table")
    if kind not in readers:
        raise ConfigError(
            f"text_config.model_type is {kind!r}, which is not native here, expected such as {family.text!r}"
        )
    whole = (
        "bos_token_id",
        "eos_token_id",
        "mrope_section",
        *family.of_whole,
        *(() if family.tied_by_text else ("tie_word_embeddings",)),
    )
    above = {key: fields.values[key] for key in whole if fields.has(key)}
    defaults = text_defaults(family.model_type, kind)
    if family.whole_prompts:  # transformers sets this beside masks of its own
        text = {field: text[field] for field in text if field != "use_bidirectional_attention"}
    fields = Fields({**defaults, **text, **above})
    spec = readers[kind](fields, name)
    if family.as_stored is not None:
        spec = family.as_stored(spec)
    if kind == "gemma3_text":
        spec = _sees_pictures_whole(spec, windows_alone=False)
    elif kind.startswith("gemma4") and fields.text("use_bidirectional_attention", "") == "vision":
        spec = _sees_pictures_whole(spec, windows_alone=True)
    if family.whole_prompts:
        spec = replace(_sees_pictures_whole(spec, windows_alone=False), whole_prompts=True)
    return replace(spec, text_part=True, scales_media=kind.startswith(_SCALING) and kind != _GRANITE4)


def seeing(architecture: str, config: Mapping[str, object]) -> str:
    """The architecture that a config.json means: files of GLM-4V and DeepSeek V4.1 name that of its text alone."""
    return _SEEING.get(architecture, architecture) if config.get("vision_config") is not None else architecture


def described_part(config: Mapping[str, object]) -> Mapping[str, object]:
    """The multimodal model in a config.json: all of it, or a retriever's model (ColPali, ColQwen3). Some have the model
    type of their architecture, whatever the file says."""
    inner = config.get("vlm_config")
    described = inner if isinstance(inner, Mapping) else config
    if described.get("model_type") == COLQWEN3_5:
        return {**described, "model_type": "qwen3_5"}
    if described.get("model_type") in (*COLQWEN3, NEMOTRON_COLEMBED):
        shared = {name: value for name, value in described.items() if name != "architectures"}
        return {**_QWEN_VL_TOKENS, **shared, "model_type": "qwen3_vl"}
    named = described.get("architectures")
    named = [seeing(each, described) for each in named] if isinstance(named, list | tuple) else []
    if JINA_V4 in named:
        return {**_QWEN_VL_TOKENS, **described, "model_type": "qwen2_5_vl"}
    own = next((each for each in _TYPED_HERE if each in named), None)
    return described if own is None else {**described, "model_type": MEDIA_FAMILIES[own].model_type}
