"""Reads a :class:`ModelSpec` from a config.json of any transformers version.

Missing fields have their architecture's default in transformers.
"""

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import NamedTuple

from . import (
    hf_classic,
    hf_deepseek4,
    hf_dense,
    hf_gemma3n,
    hf_gemma4,
    hf_hub,
    hf_hy4,
    hf_hybrid,
    hf_latent,
    hf_latent_variants,
    hf_llama4,
    hf_mamba,
    hf_minimax,
    hf_moe,
    hf_moe_variants,
    hf_step,
    hf_text_part,
    hf_variants,
)
from .config_fields import Fields, UnknownArchitectureError
from .model_spec import ModelSpec, checked


def model_spec_from_hf(config: Mapping[str, object]) -> ModelSpec:
    """The spec of a decoder. Raises :class:`.config_fields.ConfigError` for other models, and missing or wrong
    fields."""
    name = named_architecture(config, {name: decoder.model_type for name, decoder in DECODERS.items()})
    return checked(DECODERS[name].read(Fields(config), name))


def named_architecture(config: Mapping[str, object], known: Mapping[str, str]) -> str:
    """The known architecture that a config.json names, or the one with its model type; ``known``: model type by
    architecture.

    Raises :class:`UnknownArchitectureError` if there is none.
    """
    fields = Fields(config)
    named = fields.texts("architectures")
    if named is None:
        kind = fields.text("model_type", "")
        if (found := next((name for name, each in known.items() if each == kind), None)) is None:
            what = f"names no architecture and its model type {kind!r}" if kind else "names no architecture, which"
            raise UnknownArchitectureError(f"it {what} is not native here{_nearest(kind, known.values())}")
        return found
    if (found := next((name for name in named if name in known), None)) is None:
        nearest = _nearest(named[0], known) if named else ""
        raise UnknownArchitectureError(f"its architecture {', '.join(map(repr, named))} is not native here{nearest}")
    return found


def _nearest(name: str, known: Iterable[str]) -> str:
    """A clause with the most similar known name; "" if none is similar."""
    stems = {_stem(each): each for each in known}
    found = get_close_matches(_stem(name), list(stems), 1, cutoff=0.5)
    return f" (nearest: {stems[found[0]]})" if found else ""


def _stem(name: str) -> str:
    """The distinguishing part of an architecture's name."""
    return name.partition("For")[0].removesuffix("LMHeadModel").lower()


class Decoder(NamedTuple):
    model_type: str
    """In a config.json without ``architectures``."""
    read: Callable[[Fields, str], ModelSpec]


_ALONE: Mapping[str, Decoder] = {
    "LlamaForCausalLM": Decoder("llama", hf_dense.llama),
    "MistralForCausalLM": Decoder("mistral", hf_dense.mistral),
    "Qwen2ForCausalLM": Decoder("qwen2", hf_dense.qwen2),
    "Qwen3ForCausalLM": Decoder("qwen3", hf_dense.qwen3),
    "Phi3ForCausalLM": Decoder("phi3", hf_dense.phi3),
    "GemmaForCausalLM": Decoder("gemma", hf_dense.gemma),
    "Gemma2ForCausalLM": Decoder("gemma2", hf_dense.gemma2),
    "Lfm2ForCausalLM": Decoder("lfm2", hf_hybrid.lfm2),
    "Lfm2MoeForCausalLM": Decoder("lfm2_moe", hf_hybrid.lfm2_moe),
    "Lfm3ForCausalLM": Decoder("lfm3", hf_hybrid.lfm3),
    "Qwen3_5ForCausalLM": Decoder("qwen3_5_text", hf_hybrid.qwen3_5),
    "Qwen3_5MoeForCausalLM": Decoder("qwen3_5_moe_text", hf_hybrid.qwen3_5_moe),
    "Qwen4ExpForCausalLM": Decoder("qwen4_exp_text", hf_hybrid.qwen4),
    "Qwen3NextForCausalLM": Decoder("qwen3_next", hf_hybrid.qwen3_next),
    "Gemma3ForCausalLM": Decoder("gemma3_text", hf_dense.gemma3),
    "Gemma3TextForCausalLM": Decoder("gemma3_text", hf_dense.gemma3),
    "Olmo2ForCausalLM": Decoder("olmo2", hf_dense.olmo2),
    "Olmo3ForCausalLM": Decoder("olmo3", hf_dense.olmo3),
    "GraniteForCausalLM": Decoder("granite", hf_dense.granite),
    "GraniteMoeHybridForCausalLM": Decoder("granitemoehybrid", hf_hybrid.granite_hybrid),
    "MambaForCausalLM": Decoder("mamba", hf_mamba.mamba_alone),
    "FalconMambaForCausalLM": Decoder("falcon_mamba", hf_mamba.falcon_mamba),
    "JambaForCausalLM": Decoder("jamba", hf_mamba.jamba),
    "Mamba2ForCausalLM": Decoder("mamba2", hf_mamba.mamba2_alone),
    "Zamba2ForCausalLM": Decoder("zamba2", hf_mamba.zamba2),
    "NemotronHForCausalLM": Decoder("nemotron_h", hf_mamba.nemotron_h),
    "FalconH1ForCausalLM": Decoder("falcon_h1", hf_mamba.falcon_h1),
    "BambaForCausalLM": Decoder("bamba", hf_mamba.bamba),
    "RecurrentGemmaForCausalLM": Decoder("recurrent_gemma", hf_hybrid.recurrent_gemma),
    "OlmoHybridForCausalLM": Decoder("olmo_hybrid", hf_hybrid.olmo_hybrid),
    "SmolLM3ForCausalLM": Decoder("smollm3", hf_dense.smollm3),
    "Exaone4ForCausalLM": Decoder("exaone4", hf_dense.exaone4),
    "SeedOssForCausalLM": Decoder("seed_oss", hf_dense.seed_oss),
    "GlmForCausalLM": Decoder("glm", hf_variants.glm),
    "Glm4ForCausalLM": Decoder("glm4", hf_variants.glm4),
    "Ernie4_5ForCausalLM": Decoder("ernie4_5", hf_variants.ernie),
    "HeliumForCausalLM": Decoder("helium", hf_variants.helium),
    "InternLM3ForCausalLM": Decoder("internlm3", hf_variants.internlm3),
    "IQuestCoderForCausalLM": Decoder("iquestcoder", hf_variants.iquest_coder),
    "VaultGemmaForCausalLM": Decoder("vaultgemma", hf_variants.vault_gemma),
    "BitNetForCausalLM": Decoder("bitnet", hf_variants.bitnet),
    "HyperCLOVAXForCausalLM": Decoder("hyperclovax", hf_variants.hyperclovax),
    "Jais2ForCausalLM": Decoder("jais2", hf_variants.jais2),
    "MinistralForCausalLM": Decoder("ministral", hf_variants.ministral),
    "Ministral3ForCausalLM": Decoder("ministral3", hf_variants.ministral3),
    "CohereForCausalLM": Decoder("cohere", hf_variants.cohere),
    "Cohere2ForCausalLM": Decoder("cohere2", hf_variants.cohere2),
    "HunYuanDenseV1ForCausalLM": Decoder("hunyuan_v1_dense", hf_variants.hunyuan),
    "ArceeForCausalLM": Decoder("arcee", hf_variants.arcee),
    "NemotronForCausalLM": Decoder("nemotron", hf_variants.nemotron),
    "ApertusForCausalLM": Decoder("apertus", hf_variants.apertus),
    "Starcoder2ForCausalLM": Decoder("starcoder2", hf_variants.starcoder2),
    "StableLmForCausalLM": Decoder("stablelm", hf_variants.stablelm),
    "PhiForCausalLM": Decoder("phi", hf_variants.phi),
    "OPTForCausalLM": Decoder("opt", hf_classic.opt),
    "GPT2LMHeadModel": Decoder("gpt2", hf_classic.gpt2),
    "GPTNeoXForCausalLM": Decoder("gpt_neox", hf_classic.gpt_neox),
    "GPTBigCodeForCausalLM": Decoder("gpt_bigcode", hf_classic.gpt_bigcode),
    "FalconForCausalLM": Decoder("falcon", hf_classic.falcon),
    "BloomForCausalLM": Decoder("bloom", hf_classic.bloom),
    "MptForCausalLM": Decoder("mpt", hf_classic.mpt),
    "MPTForCausalLM": Decoder("mpt", hf_classic.mpt),
    "GPTNeoForCausalLM": Decoder("gpt_neo", hf_classic.gpt_neo),
    "PersimmonForCausalLM": Decoder("persimmon", hf_classic.persimmon),
    "BioGptForCausalLM": Decoder("biogpt", hf_classic.biogpt),
    "GPTJForCausalLM": Decoder("gptj", hf_classic.gptj),
    "DeepseekV2ForCausalLM": Decoder("deepseek_v2", hf_latent.deepseek_v2),
    "DeepseekV3ForCausalLM": Decoder("deepseek_v3", hf_latent.deepseek_v3),
    "DeepseekV32ForCausalLM": Decoder("deepseek_v32", hf_latent.deepseek_v32),
    "DeepseekV4ForCausalLM": Decoder("deepseek_v4", hf_deepseek4.deepseek_v4),
    "GlmMoeDsaForCausalLM": Decoder("glm_moe_dsa", hf_latent.glm_moe_dsa),
    "KimiLinearForCausalLM": Decoder("kimi_linear", hf_latent.kimi_linear),
    "BailingHybridForCausalLM": Decoder("bailing_hybrid", hf_latent.ling),
    "Mistral4ForCausalLM": Decoder("mistral4", hf_latent.mistral4),
    "AXK1ForCausalLM": Decoder("axk1", hf_latent.axk1),
    "LongcatFlashForCausalLM": Decoder("longcat_flash", hf_latent_variants.longcat_flash),
    "Dots3NoteForCausalLM": Decoder("dots3_note_text", hf_latent_variants.dots3_note),
    "AXK2ForCausalLM": Decoder("axk2", hf_latent_variants.axk2),
    "Glm4MoeLiteForCausalLM": Decoder("glm4_moe_lite", hf_latent.glm4_moe_lite),
    "MixtralForCausalLM": Decoder("mixtral", hf_moe.mixtral),
    "Qwen3MoeForCausalLM": Decoder("qwen3_moe", hf_moe.qwen3_moe),
    "Qwen2MoeForCausalLM": Decoder("qwen2_moe", hf_moe.qwen2_moe),
    "OlmoeForCausalLM": Decoder("olmoe", hf_moe.olmoe),
    "GptOssForCausalLM": Decoder("gpt_oss", hf_moe.gpt_oss),
    "Glm4MoeForCausalLM": Decoder("glm4_moe", hf_moe.glm4_moe),
    "GraniteMoeForCausalLM": Decoder("granitemoe", hf_moe.granite_moe),
    "GraniteMoeSharedForCausalLM": Decoder("granitemoeshared", hf_moe.granite_moe),
    "MiniMaxForCausalLM": Decoder("minimax", hf_minimax.minimax),
    "MiniMaxText01ForCausalLM": Decoder("MiniMaxText01", hf_minimax.minimax),
    "MiniMaxM1ForCausalLM": Decoder("minimax_m1", hf_minimax.minimax),
    "MiniMaxM2ForCausalLM": Decoder("minimax_m2", hf_moe.minimax_m2),
    "MiniMaxM3SparseForCausalLM": Decoder("minimax_m3", hf_minimax.minimax_m3),
    "MiniMaxM3VLForCausalLM": Decoder("minimax_m3_vl_text", hf_minimax.minimax_m3),
    "Dots1ForCausalLM": Decoder("dots1", hf_moe.dots1),
    "CwmForCausalLM": Decoder("cwm", hf_variants.cwm),
    "OlmoForCausalLM": Decoder("olmo", hf_variants.olmo),
    "GraniteSWAForCausalLM": Decoder("granite_swa", hf_variants.granite_swa),
    "NanoChatForCausalLM": Decoder("nanochat", hf_variants.nanochat),
    "YoutuForCausalLM": Decoder("youtu", hf_latent.youtu),
    "MiniCPM3ForCausalLM": Decoder("minicpm3", hf_latent.minicpm3),
    "Ernie4_5_MoeForCausalLM": Decoder("ernie4_5_moe", hf_moe_variants.ernie_moe),
    "HunYuanMoEV1ForCausalLM": Decoder("hunyuan_v1_moe", hf_moe_variants.hunyuan_moe),
    "FlexOlmoForCausalLM": Decoder("flex_olmo", hf_moe_variants.flex_olmo),
    "SolarOpenForCausalLM": Decoder("solar_open", hf_moe_variants.solar_open),
    "ExaoneMoeForCausalLM": Decoder("exaone_moe", hf_moe_variants.exaone_moe),
    "GraniteMoeSWAForCausalLM": Decoder("granitemoe_swa", hf_moe_variants.granite_moe_swa),
    "LagunaForCausalLM": Decoder("laguna", hf_moe_variants.laguna),
    "MellumForCausalLM": Decoder("mellum", hf_moe_variants.mellum),
    "HYV4ForCausalLM": Decoder("hy_v4", hf_hy4.hunyuan_v4),
    "HYV3ForCausalLM": Decoder("hy_v3", hf_moe_variants.hunyuan_v3),
    "AriaTextForCausalLM": Decoder("aria_text", hf_moe_variants.aria),
    "AfmoeForCausalLM": Decoder("afmoe", hf_moe_variants.afmoe),
    "Cohere2MoeForCausalLM": Decoder("cohere2_moe", hf_moe_variants.cohere2_moe),
    "MiMoV2FlashForCausalLM": Decoder("mimo_v2_flash", hf_moe_variants.mimo_v2_flash),
    "PhimoeForCausalLM": Decoder("phimoe", hf_moe_variants.phimoe),
    "PhiMoEForCausalLM": Decoder("phimoe", hf_moe_variants.phimoe),
    "InternLM2ForCausalLM": Decoder("internlm2", hf_hub.internlm2),
    "ExaoneForCausalLM": Decoder("exaone", hf_hub.exaone),
    "MiniCPMForCausalLM": Decoder("minicpm", hf_hub.minicpm),
    "BailingMoeV2ForCausalLM": Decoder("bailing_moe_v2", hf_hub.ling2),
    "MiMoForCausalLM": Decoder("mimo", hf_hub.mimo),
    "DeciLMForCausalLM": Decoder("nemotron-nas", hf_hub.nemotron_nas),
    "Gemma3nForCausalLM": Decoder("gemma3n_text", hf_gemma3n.gemma3n),
    "Gemma4ForCausalLM": Decoder("gemma4_text", hf_gemma4.gemma4),
    "Gemma4UnifiedForCausalLM": Decoder("gemma4_unified_text", hf_gemma4.gemma4_unified),
    "Step3p5ForCausalLM": Decoder("step3p5", hf_step.step),
    "Llama4ForCausalLM": Decoder("llama4_text", hf_llama4.llama4),
}
"""Text-only decoders by architecture."""
BY_TYPE: Mapping[str, Callable[[Fields, str], ModelSpec]] = {each.model_type: each.read for each in _ALONE.values()}
"""Readers of these by model type."""
DECODERS: Mapping[str, Decoder] = {
    **_ALONE,
    **{
        name: Decoder(seeing.model_type, hf_text_part.text_reader(seeing, BY_TYPE))
        for name, seeing in hf_text_part.SEEING.items()
    },
}
"""All decoders by architecture."""
