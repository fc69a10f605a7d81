"""Parity tests of each architecture, for ``docs/reference/models.md``.

A row for each architecture with a parity test; a test compares both tables with the tests.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

PARITY_FILE: Final = "tests/parity/test_architectures.py"
PARITY: Final[Mapping[str, tuple[str, ...]]] = {
    "AfmoeForCausalLM": ("afmoe",),
    "ApertusForCausalLM": ("apertus",),
    "AXK1ForCausalLM": ("axk1",),
    "AXK2ForCausalLM": ("axk2", "axk2-groups"),
    "ArceeForCausalLM": ("arcee",),
    "AriaTextForCausalLM": ("aria",),
    "BailingHybridForCausalLM": (
        "ling",
        "ling-unbound",
    ),
    "BailingMoeV2ForCausalLM": ("ling2",),
    "BambaForCausalLM": ("bamba",),
    "BioGptForCausalLM": ("biogpt",),
    "BitNetForCausalLM": ("bitnet",),
    "BloomForCausalLM": ("bloom", "bloom-six-heads"),
    "Cohere2ForCausalLM": ("cohere2",),
    "Cohere2MoeForCausalLM": (
        "cohere2-moe",
        "cohere2-moe-sigmoid",
    ),
    "CohereForCausalLM": (
        "cohere",
        "cohere-normed",
    ),
    "CwmForCausalLM": ("cwm",),
    "DeciLMForCausalLM": ("nemotron-nas",),
    "DeepseekV2ForCausalLM": (
        "deepseek-v2",
        "deepseek-v2-groups",
    ),
    "DeepseekV32ForCausalLM": ("deepseek-v3.2",),
    "DeepseekV4ForCausalLM": (
        "deepseek-v4",
        "deepseek-v4-plain",
    ),
    "DeepseekV3ForCausalLM": (
        "deepseek-v3",
        "deepseek-v3-halves",
        "deepseek-v3-dense",
    ),
    "Dots1ForCausalLM": ("dots1",),
    "Ernie4_5_MoeForCausalLM": (
        "ernie-moe",
        "ernie-moe-biased",
    ),
    "Ernie4_5ForCausalLM": (
        "ernie",
        "ernie-biased",
    ),
    "Exaone4ForCausalLM": ("exaone4",),
    "ExaoneForCausalLM": ("exaone",),
    "ExaoneMoeForCausalLM": ("exaone-moe",),
    "FalconH1ForCausalLM": (
        "falcon-h1",
        "falcon-h1-normed",
        "falcon-h1-gated-norm",
    ),
    "FalconMambaForCausalLM": ("falcon-mamba",),
    "FalconForCausalLM": (
        "falcon",
        "falcon-grouped",
        "falcon-grouped-alike",
        "falcon-serial",
        "falcon-alibi",
    ),
    "FlexOlmoForCausalLM": ("flex-olmo",),
    "Gemma2ForCausalLM": ("gemma2",),
    "Gemma3ForCausalLM": ("gemma3",),
    "Gemma3ForConditionalGeneration": ("gemma3-seeing",),
    "Gemma3nForCausalLM": (
        "gemma3n",
        "gemma3n-plain",
    ),
    "Gemma4ForCausalLM": (
        "gemma4",
        "gemma4-small",
        "gemma4-moe",
    ),
    "Gemma4ForConditionalGeneration": ("gemma4-seeing",),
    "Gemma4UnifiedForCausalLM": ("gemma4-unified",),
    "GemmaForCausalLM": ("gemma",),
    "Glm4ForCausalLM": ("glm4",),
    "Glm4MoeForCausalLM": (
        "glm4-moe",
        "glm4-moe-groups",
    ),
    "Glm4MoeLiteForCausalLM": ("glm4-moe-lite",),
    "GlmForCausalLM": ("glm",),
    "GlmMoeDsaForCausalLM": ("glm-moe-dsa",),
    "GPTBigCodeForCausalLM": (
        "gpt-bigcode",
        "gpt-bigcode-heads",
    ),
    "GPTJForCausalLM": ("gptj",),
    "GPT2LMHeadModel": (
        "gpt2",
        "gpt2-scaled",
    ),
    "GPTNeoForCausalLM": ("gpt-neo",),
    "GPTNeoXForCausalLM": (
        "gpt-neox",
        "gpt-neox-serial",
    ),
    "GptOssForCausalLM": ("gpt-oss",),
    "GraniteForCausalLM": ("granite",),
    "GraniteMoeForCausalLM": ("granite-moe",),
    "GraniteMoeHybridForCausalLM": (
        "granite4",
        "granite4-hybrid",
        "granite4-hybrid-moe",
    ),
    "GraniteMoeSharedForCausalLM": ("granite-moe-shared",),
    "GraniteMoeSWAForCausalLM": ("granite-moe-swa",),
    "GraniteSWAForCausalLM": ("granite-swa",),
    "HeliumForCausalLM": ("helium",),
    "HunYuanDenseV1ForCausalLM": (
        "hunyuan",
        "hunyuan-alpha",
    ),
    "HunYuanMoEV1ForCausalLM": ("hunyuan-moe",),
    "HyperCLOVAXForCausalLM": ("hyperclovax",),
    "HYV3ForCausalLM": ("hy-v3",),
    "HYV4ForCausalLM": (
        "hy-v4",
        "hy-v4-shared",
    ),
    "InternLM2ForCausalLM": (
        "internlm2",
        "internlm2-biased",
    ),
    "InternLM3ForCausalLM": ("internlm3",),
    "Jais2ForCausalLM": ("jais2",),
    "JambaForCausalLM": (
        "jamba",
        "jamba-dense",
    ),
    "KimiLinearForCausalLM": ("kimi-linear",),
    "Lfm2ForCausalLM": (
        "lfm2",
        "lfm2-biased",
    ),
    "Lfm2MoeForCausalLM": ("lfm2-moe",),
    "Lfm3ForCausalLM": (
        "lfm3",
        "lfm3-plain",
    ),
    "Llama4ForCausalLM": (
        "llama4",
        "llama4-alternating",
    ),
    "Llama4ForConditionalGeneration": ("llama4-seeing",),
    "LlamaForCausalLM": (
        "llama",
        "llama-biased",
        "llama-wide-heads",
        "llama-linear",
        "llama-dynamic",
        "llama-llama3",
        "llama-yarn",
    ),
    "Mamba2ForCausalLM": (
        "mamba2",
        "mamba2-biased",
    ),
    "MambaForCausalLM": (
        "mamba",
        "mamba-biased",
    ),
    "MiMoV2FlashForCausalLM": ("mimo-v2-flash",),
    "LagunaForCausalLM": (
        "laguna",
        "laguna-by-element",
    ),
    "MellumForCausalLM": (
        "mellum",
        "mellum-plain",
    ),
    "MiMoForCausalLM": ("mimo",),
    "MiniCPM3ForCausalLM": ("minicpm3",),
    "MiniCPMForCausalLM": (
        "minicpm",
        "minicpm4",
    ),
    "MiniMaxForCausalLM": ("minimax", "minimax-plain"),
    "MiniMaxM2ForCausalLM": ("minimax-m2",),
    "MiniMaxM3VLForCausalLM": ("minimax-m3",),
    "Ministral3ForCausalLM": ("ministral3",),
    "MinistralForCausalLM": ("ministral",),
    "Mistral3ForConditionalGeneration": ("mistral3-seeing",),
    "MistralForCausalLM": ("mistral",),
    "MistralLarge4ForConditionalGeneration": ("mistral-large4-seeing", "mistral-large4-shared"),
    "Mistral4ForCausalLM": (
        "mistral4",
        "mistral4-groups",
    ),
    "MixtralForCausalLM": ("mixtral",),
    "Dots3NoteForCausalLM": ("dots3-note", "dots3-note-full"),
    "Dots3NoteForConditionalGeneration": ("dots3-note-whole",),
    "LongcatFlashForCausalLM": ("longcat", "longcat-packed"),
    "MptForCausalLM": ("mpt", "mpt-clipped"),
    "NanoChatForCausalLM": ("nanochat",),
    "NemotronForCausalLM": ("nemotron",),
    "NemotronHForCausalLM": (
        "nemotron-h",
        "nemotron-h-moe",
        "nemotron-h-latent",
    ),
    "Olmo2ForCausalLM": ("olmo2",),
    "Olmo3ForCausalLM": ("olmo3",),
    "OlmoeForCausalLM": ("olmoe",),
    "OlmoForCausalLM": ("olmo",),
    "OlmoHybridForCausalLM": (
        "olmo-hybrid",
        "olmo-hybrid-still",
    ),
    "OPTForCausalLM": (
        "opt",
        "opt-galactica",
    ),
    "PersimmonForCausalLM": ("persimmon",),
    "Phi3ForCausalLM": (
        "phi3",
        "phi3-longrope-short",
        "phi3-longrope-long",
        "phi3-partial",
    ),
    "PhiForCausalLM": (
        "phi-normed",
        "phi",
    ),
    "PhimoeForCausalLM": (
        "phimoe",
        "phimoe-biased",
    ),
    "Qwen2ForCausalLM": (
        "qwen2",
        "qwen2-window",
    ),
    "Qwen2MoeForCausalLM": ("qwen2-moe",),
    "Qwen3_5ForCausalLM": (
        "qwen3.5",
        "qwen3.5-attending",
    ),
    "Qwen3_5ForConditionalGeneration": ("qwen3.5-seeing",),
    "Qwen3_5MoeForCausalLM": ("qwen3.5-moe",),
    "Qwen3ForCausalLM": ("qwen3",),
    "Qwen3MoeForCausalLM": (
        "qwen3-moe",
        "qwen3-moe-steps",
    ),
    "Qwen3NextForCausalLM": (
        "qwen3-next-moe",
        "qwen3-next",
    ),
    "Qwen4ExpForCausalLM": (
        "qwen4",
        "qwen4-plain",
    ),
    "RecurrentGemmaForCausalLM": ("recurrent-gemma",),
    "SeedOssForCausalLM": ("seed-oss",),
    "SmolLM3ForCausalLM": ("smollm3",),
    "Step3p5ForCausalLM": ("step3.5",),
    "Step3p7ForConditionalGeneration": ("step3.7-seeing",),
    "SolarOpenForCausalLM": ("solar-open",),
    "StableLmForCausalLM": (
        "stablelm",
        "stablelm-parallel",
        "stablelm-normed",
    ),
    "Starcoder2ForCausalLM": ("starcoder2",),
    "VaultGemmaForCausalLM": ("vault-gemma",),
    "YoutuForCausalLM": ("youtu",),
    "Zamba2ForCausalLM": ("zamba2", "zamba2-plain"),
}
"""By architecture: the tiny models whose logits and tokens :data:`PARITY_FILE` compares with transformers'; the names
are the tests' parameters."""


MEDIA_FILE: Final = "tests/parity/test_media_models.py"
MEDIA: Final[Mapping[str, tuple[str, ...]]] = {
    "AriaForConditionalGeneration": ("aria",),
    "AudioFlamingo3ForConditionalGeneration": ("audio_flamingo_3",),
    "AyaVisionForConditionalGeneration": ("aya_vision",),
    "Cohere2VisionForConditionalGeneration": ("cohere2_vision",),
    "DeepseekOCRForCausalLM": ("deepseek_ocr",),
    "DeepseekOcr2ForConditionalGeneration": ("deepseek_ocr2",),
    "DeepseekVLHybridForConditionalGeneration": ("deepseek_vl_hybrid",),
    "DeepseekVLForConditionalGeneration": ("deepseek_vl",),
    "Eagle2_5_VLForConditionalGeneration": ("eagle2_5", "eagle2_5_whole"),
    "Exaone4_5_ForConditionalGeneration": ("exaone4_5",),
    "Ernie4_5_VLMoeForConditionalGeneration": ("ernie_vl",),
    "FunAudioChatForConditionalGeneration": ("funaudiochat", "funaudiochat_alone"),
    "Gemma3ForConditionalGeneration": ("gemma3",),
    "Gemma3nForConditionalGeneration": ("gemma3n_hears",),
    "Gemma4ForConditionalGeneration": ("gemma4_small", "gemma4_large", "gemma4_film", "gemma4_hears"),
    "Gemma4UnifiedForConditionalGeneration": (*("gemma4_unified", "gemma4_unified_film", "gemma4_unified_hears"),),
    "Glm46VForConditionalGeneration": ("glm46v",),
    "Glm4vForConditionalGeneration": ("glm4v", "glm4v_film"),
    "Glm4vMoeForConditionalGeneration": ("glm4v_moe",),
    "GlmAsrForConditionalGeneration": ("glm_asr",),
    "GlmOcrForConditionalGeneration": ("glm_ocr",),
    "GotOcr2ForConditionalGeneration": ("got_ocr2",),
    "Granite4VisionForConditionalGeneration": ("granite4_vision",),
    "GraniteDoclingForConditionalGeneration": ("granite_docling", "granite_docling_fine"),
    "GraniteSpeechForConditionalGeneration": ("granite_speech",),
    "GraniteSpeechPlusForConditionalGeneration": ("granite_speech_plus",),
    "HunYuanVLForConditionalGeneration": ("hunyuan_vl", "hunyuan_vl_three"),
    "HyperCLOVAXVisionV2ForConditionalGeneration": ("hyperclovax_vision",),
    "Idefics2ForConditionalGeneration": ("idefics2",),
    "Idefics3ForConditionalGeneration": ("idefics3",),
    "InternVLChatModel": ("internvl_chat", "internvl_internlm2"),
    "InternVLForConditionalGeneration": ("internvl",),
    "JanusForConditionalGeneration": ("janus",),
    "KimiVLForConditionalGeneration": ("kimi_vl",),
    "Kimi_K25ForConditionalGeneration": ("kimi_k25",),
    "Lfm2VlForConditionalGeneration": ("lfm2_vl",),
    "Lfm3VlForConditionalGeneration": ("lfm3_vl",),
    "LightOnOcrForConditionalGeneration": ("lighton_ocr",),
    "Llama4ForConditionalGeneration": ("llama4",),
    "Llama_Nemotron_Nano_VL": ("llama_nemotron_vl",),
    "LlavaForConditionalGeneration": ("llava", "pixtral"),
    "LlavaNextForConditionalGeneration": ("granite_vision",),
    "LlavaOnevisionForConditionalGeneration": ("llava_onevision",),
    "MiniCPMOcrForConditionalGeneration": ("minicpm_ocr",),
    "MiniCPMV4_6ForConditionalGeneration": ("minicpmv4_6",),
    "MiniMaxM3SparseForConditionalGeneration": ("minimax_m3",),
    "Mistral3ForConditionalGeneration": ("mistral3", "mistral4"),
    "MistralLarge4ForConditionalGeneration": ("mistral_large4",),
    "NemotronH_Nano_VL_V2": ("nemotron_h_vl",),
    "Ovis2_5": ("ovis2_5", "ovis2_5_film", "ovis2_5_windows"),
    "Ovis2ForConditionalGeneration": ("ovis2",),
    "PaddleOCRVLForConditionalGeneration": ("paddleocr_vl",),
    "Phi4MultimodalForCausalLM": ("phi4_multimodal",),
    "PaliGemmaForConditionalGeneration": ("paligemma", "paligemma2"),
    "QianfanOCRForConditionalGeneration": ("qianfan_ocr",),
    "Qwen2AudioForConditionalGeneration": ("qwen2_audio",),
    "Qwen2_5OmniForConditionalGeneration": ("qwen2_5_omni",),
    "Qwen2_5OmniThinkerForConditionalGeneration": ("qwen2_5_omni_thinker",),
    "Qwen2VLForConditionalGeneration": ("qwen2_vl", "qwen2_vl_film"),
    "Qwen2_5_VLForConditionalGeneration": ("qwen2_5_vl",),
    "Qwen3ASRForConditionalGeneration": ("qwen3_asr",),
    "Qwen3OmniMoeForConditionalGeneration": ("qwen3_omni",),
    "Qwen3OmniMoeThinkerForConditionalGeneration": ("qwen3_omni_thinker",),
    "Qwen3VLForConditionalGeneration": ("qwen3_vl",),
    "Qwen3VLMoeForConditionalGeneration": ("qwen3_vl_moe",),
    "Qwen3_5ForConditionalGeneration": ("qwen3_5", "qwen3_5_film"),
    "Qwen3_5MoeForConditionalGeneration": ("qwen3_5_moe",),
    "SmolVLMForConditionalGeneration": ("smolvlm",),
    "Step3p7ForConditionalGeneration": ("step",),
    "UltravoxModel": ("ultravox", "ultravox_0.4"),
    "VideoLlama3ForConditionalGeneration": ("video_llama_3", "video_llama_3_film"),
    "VoxtralForConditionalGeneration": ("voxtral",),
}
"""By architecture: the tiny models for which :data:`MEDIA_FILE` does the same with media in their prompts."""


class FormatCheck(NamedTuple):
    format: str
    file: str
    """Test that compares logits with those of the stored values."""
    names: tuple[str, ...]
    """Names of its checkpoints."""


_CHECKPOINTS: Final = "tests/engine/quantization/test_checkpoints.py"
_EXPERTS: Final = "tests/engine/quantization/test_experts.py"
FORMATS: Final[Mapping[str, tuple[FormatCheck, ...]]] = {
    "LlamaForCausalLM": (
        FormatCheck("FP8", _CHECKPOINTS, ("fp8", "compressed-fp8")),
        FormatCheck("GPTQ", _CHECKPOINTS, ("gptq", "gptq-v2", "gptq-act-order", "gptq8")),
        FormatCheck("AWQ", _CHECKPOINTS, ("awq",)),
        FormatCheck("int8", _CHECKPOINTS, ("compressed-int8",)),
        FormatCheck("ternary", _CHECKPOINTS, ("bitnet", "bitnet-divided", "bitnet-online")),
        FormatCheck("MXFP4", _CHECKPOINTS, ("compressed-mxfp4",)),
        FormatCheck("NVFP4", _CHECKPOINTS, ("compressed-nvfp4", "modelopt-nvfp4")),
    ),
    "Qwen3MoeForCausalLM": (
        FormatCheck("FP8", _EXPERTS, ("fp8",)),
        FormatCheck("GPTQ", _EXPERTS, ("gptq",)),
        FormatCheck("AWQ", _EXPERTS, ("awq",)),
        FormatCheck("int8", _EXPERTS, ("int8", "gptq8")),
        FormatCheck("NVFP4", _EXPERTS, ("nvfp4",)),
    ),
    "Mistral4ForCausalLM": (FormatCheck("FP8", _EXPERTS, ("mistral4",)),),
    "GptOssForCausalLM": (FormatCheck("MXFP4", _EXPERTS, ("gpt-oss",)),),
}
"""By architecture: formats of weights other than unquantised ones and GGUF's."""
