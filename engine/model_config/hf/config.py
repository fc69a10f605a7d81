"""Reads a :class:`ModelSpec` from a config.json of any transformers version.

Missing fields have their architecture's default in transformers.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Final, NamedTuple

from ..config_fields import ConfigError, Fields, UnknownArchitectureError
from ..spec.model import ModelSpec, checked
from . import classic as hf_classic
from . import deepseek4 as hf_deepseek4
from . import deepseek41 as hf_deepseek41
from . import dense as hf_dense
from . import dory as hf_dory
from . import gemma3n as hf_gemma3n
from . import gemma4 as hf_gemma4
from . import glm5 as hf_glm5
from . import hrm as hf_hrm
from . import hub as hf_hub
from . import hub_moe as hf_hub_moe
from . import hy4 as hf_hy4
from . import hybrid as hf_hybrid
from . import inkling as hf_inkling
from . import k2_horizon as hf_k2_horizon
from . import kimi as hf_kimi
from . import latent as hf_latent
from . import latent_variants as hf_latent_variants
from . import llama4 as hf_llama4
from . import mamba as hf_mamba
from . import minimax as hf_minimax
from . import mllama as hf_mllama
from . import moe as hf_moe
from . import moe_variants as hf_moe_variants
from . import recent as hf_recent
from . import singular as hf_singular
from . import step as hf_step
from . import text_part as hf_text_part
from . import variants as hf_variants


def model_spec_from_hf(config: Mapping[str, object]) -> ModelSpec:
    """The spec of a decoder. Raises :class:`..config_fields.ConfigError` for other models, and missing or wrong
    fields."""
    name = named_architecture(config, {name: decoder.model_type for name, decoder in DECODERS.items()})
    decoder = DECODERS[name]
    shared = {"num_key_value_heads": decoder.kv_heads} if decoder.kv_heads else {}
    return checked(decoder.read(Fields({**shared, **config}), name))


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
            if not kind:
                raise ConfigError("its config.json has neither architectures nor model_type, so it is of no model")
            what = f"names no architecture and its model type {kind!r}"
            raise UnknownArchitectureError(f"it {what} is not native here{_nearest(kind, known.values())}")
        return found
    meant = [sees if (sees := hf_text_part.seeing(name, config)) in known else name for name in named]
    if (found := next((name for name in meant if name in known), None)) is None:
        nearest = _nearest(named[0], known) if named else ""
        raise UnknownArchitectureError(f"its architecture {', '.join(map(repr, named))} is not native here{nearest}")
    return _LENT.get((found, fields.text("model_type", "")), found)


_LENT: Final[Mapping[tuple[str, str], str]] = {
    ("Glm4MoeForCausalLM", "sarvam_moe"): "SarvamMoEForCausalLM",
    ("DeepseekV3ForCausalLM", "sarvam_mla"): "SarvamMLAForCausalLM",
    ("LlamaForCausalLM", "exaone"): "ExaoneForCausalLM",
}
"""Architectures by what transformers writes for them: a class of another family, beside a model type of their own. The
tensors have the names that published files have."""


def _nearest(name: str, known: Iterable[str]) -> str:
    """A clause with the most similar known name; "" if none is similar."""
    known = [*known]
    stems = get_close_matches(_stem(name), {_stem(each) for each in known}, 1, cutoff=0.5)
    alike = get_close_matches(name, [each for each in known if _stem(each) in stems], 1, cutoff=0)
    return f" (nearest: {alike[0]})" if alike else ""


def _stem(name: str) -> str:
    """The distinguishing part of an architecture's name, where one generation is as good as another."""
    return re.sub(r"\d", "0", name.partition("For")[0].removesuffix("LMHeadModel").lower())


class DecoderFamily(NamedTuple):
    model_type: str
    """In a config.json without ``architectures``."""
    read: Callable[[Fields, str], ModelSpec]
    kv_heads: int = 0
    """``num_key_value_heads`` of files that leave it out, as in transformers; 0, and null in a file: as many as
    ``num_attention_heads``."""


TEXT_DECODERS: Mapping[str, DecoderFamily] = {
    "LlamaForCausalLM": DecoderFamily("llama", hf_dense.llama),
    "MistralForCausalLM": DecoderFamily("mistral", hf_dense.mistral, 8),
    "Qwen2ForCausalLM": DecoderFamily("qwen2", hf_dense.qwen2),
    "Qwen3ForCausalLM": DecoderFamily("qwen3", hf_dense.qwen3),
    "Phi3ForCausalLM": DecoderFamily("phi3", hf_dense.phi3),
    "GemmaForCausalLM": DecoderFamily("gemma", hf_dense.gemma),
    "Gemma2ForCausalLM": DecoderFamily("gemma2", hf_dense.gemma2, 4),
    "Lfm2ForCausalLM": DecoderFamily("lfm2", hf_hybrid.lfm2, 8),
    "Lfm2MoeForCausalLM": DecoderFamily("lfm2_moe", hf_hybrid.lfm2_moe, 8),
    "Lfm3ForCausalLM": DecoderFamily("lfm3", hf_hybrid.lfm3, 4),
    "Qwen3_5ForCausalLM": DecoderFamily("qwen3_5_text", hf_hybrid.qwen3_5, 4),
    "Qwen3_5MoeForCausalLM": DecoderFamily("qwen3_5_moe_text", hf_hybrid.qwen3_5_moe, 2),
    "Qwen4ExpForCausalLM": DecoderFamily("qwen4_exp_text", hf_hybrid.qwen4),
    "LaraMiniForCausalLM": DecoderFamily("lara_mini", hf_hybrid.lara_mini),
    "Qwen3NextForCausalLM": DecoderFamily("qwen3_next", hf_hybrid.qwen3_next, 2),
    "AliceAIForCausalLM": DecoderFamily("alice_ai", hf_hybrid.alice),
    "Gemma3ForCausalLM": DecoderFamily("gemma3_text", hf_dense.gemma3, 4),
    "Gemma3TextForCausalLM": DecoderFamily("gemma3_text", hf_dense.gemma3, 4),
    "Olmo2ForCausalLM": DecoderFamily("olmo2", hf_dense.olmo2),
    "Olmo3ForCausalLM": DecoderFamily("olmo3", hf_dense.olmo3),
    "GraniteForCausalLM": DecoderFamily("granite", hf_dense.granite),
    "GraniteMoeHybridForCausalLM": DecoderFamily("granitemoehybrid", hf_hybrid.granite_hybrid),
    "MambaForCausalLM": DecoderFamily("mamba", hf_mamba.mamba_alone),
    "FalconMambaForCausalLM": DecoderFamily("falcon_mamba", hf_mamba.falcon_mamba),
    "JambaForCausalLM": DecoderFamily("jamba", hf_mamba.jamba),
    "Mamba2ForCausalLM": DecoderFamily("mamba2", hf_mamba.mamba2_alone),
    "Zamba2ForCausalLM": DecoderFamily("zamba2", hf_mamba.zamba2),
    "NemotronHForCausalLM": DecoderFamily("nemotron_h", hf_mamba.nemotron_h),
    "NemotronHPuzzleForCausalLM": DecoderFamily("nemotron_h_puzzle", hf_mamba.nemotron_puzzle),
    "FalconH1ForCausalLM": DecoderFamily("falcon_h1", hf_mamba.falcon_h1, 8),
    "BambaForCausalLM": DecoderFamily("bamba", hf_mamba.bamba),
    "RecurrentGemmaForCausalLM": DecoderFamily("recurrent_gemma", hf_hybrid.recurrent_gemma),
    "OlmoHybridForCausalLM": DecoderFamily("olmo_hybrid", hf_hybrid.olmo_hybrid),
    "SmolLM3ForCausalLM": DecoderFamily("smollm3", hf_dense.smollm3, 4),
    "Exaone4ForCausalLM": DecoderFamily("exaone4", hf_dense.exaone4),
    "SeedOssForCausalLM": DecoderFamily("seed_oss", hf_dense.seed_oss, 8),
    "GlmForCausalLM": DecoderFamily("glm", hf_variants.glm, 2),
    "Glm4ForCausalLM": DecoderFamily("glm4", hf_variants.glm4, 2),
    "Ernie4_5ForCausalLM": DecoderFamily("ernie4_5", hf_variants.ernie, 2),
    "HeliumForCausalLM": DecoderFamily("helium", hf_variants.helium),
    "InternLM3ForCausalLM": DecoderFamily("internlm3", hf_variants.internlm3, 2),
    "IQuestCoderForCausalLM": DecoderFamily("iquestcoder", hf_variants.iquest_coder, 8),
    "VaultGemmaForCausalLM": DecoderFamily("vaultgemma", hf_variants.vault_gemma, 4),
    "BitNetForCausalLM": DecoderFamily("bitnet", hf_variants.bitnet),
    "HyperCLOVAXForCausalLM": DecoderFamily("hyperclovax", hf_variants.hyperclovax),
    "Jais2ForCausalLM": DecoderFamily("jais2", hf_variants.jais2),
    "MinistralForCausalLM": DecoderFamily("ministral", hf_variants.ministral, 8),
    "Ministral3ForCausalLM": DecoderFamily("ministral3", hf_variants.ministral3, 8),
    "CohereForCausalLM": DecoderFamily("cohere", hf_variants.cohere),
    "Cohere2ForCausalLM": DecoderFamily("cohere2", hf_variants.cohere2),
    "HunYuanDenseV1ForCausalLM": DecoderFamily("hunyuan_v1_dense", hf_variants.hunyuan),
    "ArceeForCausalLM": DecoderFamily("arcee", hf_variants.arcee),
    "NemotronForCausalLM": DecoderFamily("nemotron", hf_variants.nemotron),
    "ApertusForCausalLM": DecoderFamily("apertus", hf_variants.apertus),
    "Apertus1p5TextForCausalLM": DecoderFamily("apertus1p5_text", hf_variants.apertus15),
    "Starcoder2ForCausalLM": DecoderFamily("starcoder2", hf_variants.starcoder2, 2),
    "StableLmForCausalLM": DecoderFamily("stablelm", hf_variants.stablelm),
    "PhiForCausalLM": DecoderFamily("phi", hf_variants.phi),
    "OPTForCausalLM": DecoderFamily("opt", hf_classic.opt),
    "GPT2LMHeadModel": DecoderFamily("gpt2", hf_classic.gpt2),
    "GPTNeoXForCausalLM": DecoderFamily("gpt_neox", hf_classic.gpt_neox),
    "GPTBigCodeForCausalLM": DecoderFamily("gpt_bigcode", hf_classic.gpt_bigcode),
    "FalconForCausalLM": DecoderFamily("falcon", hf_classic.falcon),
    "BloomForCausalLM": DecoderFamily("bloom", hf_classic.bloom),
    "MptForCausalLM": DecoderFamily("mpt", hf_classic.mpt),
    "MPTForCausalLM": DecoderFamily("mpt", hf_classic.mpt),
    "GPTNeoForCausalLM": DecoderFamily("gpt_neo", hf_classic.gpt_neo),
    "PersimmonForCausalLM": DecoderFamily("persimmon", hf_classic.persimmon),
    "BioGptForCausalLM": DecoderFamily("biogpt", hf_classic.biogpt),
    "GPTJForCausalLM": DecoderFamily("gptj", hf_classic.gptj),
    "DeepseekForCausalLM": DecoderFamily("deepseek", hf_latent.deepseek),
    "FlintForCausalLM": DecoderFamily("flint", hf_recent.flint, 4),
    "Kolibri1ForCausalLM": DecoderFamily("kolibri1", hf_recent.kolibri1, 4),
    "DoryForCausalLM": DecoderFamily("dory", hf_dory.dory),
    "HrmTextForCausalLM": DecoderFamily("hrm_text", hf_hrm.hrm),
    "CohereCompassForCausalLM": DecoderFamily("cohere_compass_text", hf_recent.cohere_compass),
    "BeamForCausalLM": DecoderFamily("beam", hf_recent.beam, 8),
    "ZayaForCausalLM": DecoderFamily("zaya", hf_recent.zaya),
    "InklingForCausalLM": DecoderFamily("inkling_text", hf_inkling.inkling),
    "CodeGenForCausalLM": DecoderFamily("codegen", hf_classic.codegen),
    "XGLMForCausalLM": DecoderFamily("xglm", hf_classic.xglm),
    "OpenAIGPTLMHeadModel": DecoderFamily("openai-gpt", hf_classic.openai_gpt),
    "GPTNeoXJapaneseForCausalLM": DecoderFamily("gpt_neox_japanese", hf_classic.gpt_neox_japanese),
    "DeepseekV2ForCausalLM": DecoderFamily("deepseek_v2", hf_latent.deepseek_v2),
    "DeepseekV3ForCausalLM": DecoderFamily("deepseek_v3", hf_latent.deepseek_v3),
    "DeepseekV32ForCausalLM": DecoderFamily("deepseek_v32", hf_latent.deepseek_v32),
    "DeepseekV4ForCausalLM": DecoderFamily("deepseek_v4", hf_deepseek4.deepseek_v4),
    "DeepseekV41ForCausalLM": DecoderFamily("deepseek_v41", hf_deepseek41.deepseek_v41),
    "GlmMoeDsaForCausalLM": DecoderFamily("glm_moe_dsa", hf_latent.glm_moe_dsa),
    "KimiLinearForCausalLM": DecoderFamily("kimi_linear", hf_kimi.kimi_linear),
    "BailingHybridForCausalLM": DecoderFamily("bailing_hybrid", hf_latent.ling),
    "BailingMoeV2_5ForCausalLM": DecoderFamily("bailing_hybrid", hf_latent_variants.ling25),
    "BailingMoeV3ForCausalLM": DecoderFamily("bailing_hybrid", hf_latent.ling),
    "Mistral4ForCausalLM": DecoderFamily("mistral4", hf_latent.mistral4),
    "AXK1ForCausalLM": DecoderFamily("axk1", hf_latent.axk1),
    "LongcatFlashForCausalLM": DecoderFamily("longcat_flash", hf_latent_variants.longcat_flash),
    "LongcatFlashNgramForCausalLM": DecoderFamily("longcat_flash_ngram", hf_latent_variants.longcat_ngram),
    "Dots3NoteForCausalLM": DecoderFamily("dots3_note_text", hf_latent_variants.dots3_note),
    "AXK2ForCausalLM": DecoderFamily("axk2", hf_latent_variants.axk2),
    "Glm4MoeLiteForCausalLM": DecoderFamily("glm4_moe_lite", hf_latent.glm4_moe_lite),
    "MixtralForCausalLM": DecoderFamily("mixtral", hf_moe.mixtral, 8),
    "Qwen3MoeForCausalLM": DecoderFamily("qwen3_moe", hf_moe.qwen3_moe, 4),
    "Qwen2MoeForCausalLM": DecoderFamily("qwen2_moe", hf_moe.qwen2_moe),
    "OlmoeForCausalLM": DecoderFamily("olmoe", hf_moe.olmoe),
    "GptOssForCausalLM": DecoderFamily("gpt_oss", hf_moe.gpt_oss, 8),
    "Glm4MoeForCausalLM": DecoderFamily("glm4_moe", hf_moe.glm4_moe),
    "GraniteMoeForCausalLM": DecoderFamily("granitemoe", hf_moe.granite_moe),
    "GraniteMoeSharedForCausalLM": DecoderFamily("granitemoeshared", hf_moe.granite_moe),
    "MiniMaxForCausalLM": DecoderFamily("minimax", hf_minimax.minimax, 8),
    "MiniMaxText01ForCausalLM": DecoderFamily("MiniMaxText01", hf_minimax.minimax),
    "MiniMaxM1ForCausalLM": DecoderFamily("minimax_m1", hf_minimax.minimax),
    "MiniMaxM2ForCausalLM": DecoderFamily("minimax_m2", hf_moe.minimax_m2, 8),
    "MiniMaxM3SparseForCausalLM": DecoderFamily("minimax_m3", hf_minimax.minimax_m3),
    "MiniMaxM3VLForCausalLM": DecoderFamily("minimax_m3_vl_text", hf_minimax.minimax_m3, 4),
    "Dots1ForCausalLM": DecoderFamily("dots1", hf_moe.dots1),
    "CwmForCausalLM": DecoderFamily("cwm", hf_variants.cwm, 8),
    "OlmoForCausalLM": DecoderFamily("olmo", hf_variants.olmo),
    "GraniteSWAForCausalLM": DecoderFamily("granite_swa", hf_variants.granite_swa, 4),
    "NanoChatForCausalLM": DecoderFamily("nanochat", hf_variants.nanochat),
    "YoutuForCausalLM": DecoderFamily("youtu", hf_latent.youtu),
    "MiniCPM3ForCausalLM": DecoderFamily("minicpm3", hf_latent.minicpm3),
    "Ernie4_5_MoeForCausalLM": DecoderFamily("ernie4_5_moe", hf_moe_variants.ernie_moe, 4),
    "HunYuanMoEV1ForCausalLM": DecoderFamily("hunyuan_v1_moe", hf_moe_variants.hunyuan_moe),
    "FlexOlmoForCausalLM": DecoderFamily("flex_olmo", hf_moe_variants.flex_olmo),
    "SolarOpenForCausalLM": DecoderFamily("solar_open", hf_moe_variants.solar_open, 8),
    "ExaoneMoeForCausalLM": DecoderFamily("exaone_moe", hf_moe_variants.exaone_moe),
    "ExaoneMoEForCausalLM": DecoderFamily("exaone_moe", hf_moe_variants.exaone_moe),
    "GraniteMoeSWAForCausalLM": DecoderFamily("granitemoe_swa", hf_moe_variants.granite_moe_swa),
    "LagunaForCausalLM": DecoderFamily("laguna", hf_moe_variants.laguna, 8),
    "MellumForCausalLM": DecoderFamily("mellum", hf_moe_variants.mellum, 4),
    "HYV4ForCausalLM": DecoderFamily("hy_v4", hf_hy4.hunyuan_v4),
    "HYV3ForCausalLM": DecoderFamily("hy_v3", hf_moe_variants.hunyuan_v3, 8),
    "AriaTextForCausalLM": DecoderFamily("aria_text", hf_moe_variants.aria),
    "AfmoeForCausalLM": DecoderFamily("afmoe", hf_moe_variants.afmoe),
    "Cohere2MoeForCausalLM": DecoderFamily("cohere2_moe", hf_moe_variants.cohere2_moe),
    "MiMoV2FlashForCausalLM": DecoderFamily("mimo_v2_flash", hf_moe_variants.mimo_v2_flash, 4),
    "PhimoeForCausalLM": DecoderFamily("phimoe", hf_moe_variants.phimoe, 8),
    "PhiMoEForCausalLM": DecoderFamily("phimoe", hf_moe_variants.phimoe, 8),
    "InternLM2ForCausalLM": DecoderFamily("internlm2", hf_hub.internlm2),
    "ExaoneForCausalLM": DecoderFamily("exaone", hf_hub.exaone),
    "MiniCPMForCausalLM": DecoderFamily("minicpm", hf_hub.minicpm),
    "ArcticForCausalLM": DecoderFamily("arctic", hf_hub_moe.arctic),
    "BailingMoeForCausalLM": DecoderFamily("bailing_moe", hf_hub_moe.ling),
    "BailingMoeV2ForCausalLM": DecoderFamily("bailing_moe_v2", hf_hub_moe.ling2),
    **dict.fromkeys(("Grok1ModelForCausalLM", "Grok1ForCausalLM"), DecoderFamily("grok-1", hf_hub_moe.grok)),
    "SarvamMoEForCausalLM": DecoderFamily("sarvam_moe", hf_hub_moe.sarvam_moe),
    "SarvamMLAForCausalLM": DecoderFamily("sarvam_mla", hf_hub_moe.sarvam_mla),
    "Param2MoEForCausalLM": DecoderFamily("param2moe", hf_hub_moe.param2),
    "PanguUltraMoEForCausalLM": DecoderFamily("pangu_ultra_moe", hf_hub_moe.pangu_ultra),
    "MiMoForCausalLM": DecoderFamily("mimo", hf_hub.mimo),
    "DeciLMForCausalLM": DecoderFamily("nemotron-nas", hf_hub.nemotron_nas),
    "LLaMAForCausalLM": DecoderFamily("llama", hf_hub.older_llama),
    "XverseForCausalLM": DecoderFamily("xverse", hf_dense.llama),
    "AquilaForCausalLM": DecoderFamily("aquila", hf_dense.llama),
    "AquilaModel": DecoderFamily("aquila", hf_dense.llama),
    "TeleChat3ForCausalLM": DecoderFamily("telechat3", hf_dense.llama),
    "TeleFLMForCausalLM": DecoderFamily("TeleFLM", hf_hub.teleflm),
    "InternLMForCausalLM": DecoderFamily("internlm", hf_hub.biased_llama),
    "PanguEmbeddedForCausalLM": DecoderFamily("PanguEmbedded", hf_hub.biased_llama),
    "OrionForCausalLM": DecoderFamily("orion", hf_hub.orion),
    "QWenLMHeadModel": DecoderFamily("qwen", hf_hub.qwen1),
    "BaichuanForCausalLM": DecoderFamily("baichuan", hf_hub.baichuan),
    "BaiChuanForCausalLM": DecoderFamily("baichuan", hf_hub.baichuan),
    "ChatGLMModel": DecoderFamily("chatglm", hf_hub.chatglm),
    "ChatGLMForConditionalGeneration": DecoderFamily("chatglm", hf_hub.chatglm),
    "StableLMEpochForCausalLM": DecoderFamily("stablelm_epoch", hf_hub.stablelm_epoch),
    "RWForCausalLM": DecoderFamily("RefinedWeb", hf_hub.refined_web),
    "Rnj1ForCausalLM": DecoderFamily("rnj1", hf_hub.rnj1),
    "NanbeigeForCausalLM": DecoderFamily("nanbeige", hf_hub.nanbeige),
    "TeleChatForCausalLM": DecoderFamily("telechat", hf_hub.telechat),
    "TelechatForCausalLM": DecoderFamily("telechat", hf_hub.telechat),
    "TeleChat2ForCausalLM": DecoderFamily("telechat", hf_hub.telechat),
    "SolarForCausalLM": DecoderFamily("solar", hf_hub.solar),
    "JAISLMHeadModel": DecoderFamily("jais", hf_classic.jais),
    "IQuestLoopCoderForCausalLM": DecoderFamily("iquestloopcoder", hf_hub.loop_coder),
    "Plamo3ForCausalLM": DecoderFamily("plamo3", hf_hub.plamo3),
    "DomynEdgeForCausalLM": DecoderFamily("domynedge", hf_hub.domyn_edge),
    "OuroForCausalLM": DecoderFamily("ouro", hf_hub.ouro),
    "Gemma3nForCausalLM": DecoderFamily("gemma3n_text", hf_gemma3n.gemma3n, 2),
    "Gemma4ForCausalLM": DecoderFamily("gemma4_text", hf_gemma4.gemma4, 4),
    "Gemma4UnifiedForCausalLM": DecoderFamily("gemma4_unified_text", hf_gemma4.gemma4_unified, 4),
    "Step1ForCausalLM": DecoderFamily("step1", hf_step.step1),
    "Step3TextForCausalLM": DecoderFamily("step3_text", hf_step.step3),
    "Step3p5ForCausalLM": DecoderFamily("step3p5", hf_step.step),
    "K2HorizonForCausalLM": DecoderFamily("k2_horizon", hf_k2_horizon.k2_horizon),
    "Step5ForCausalLM": DecoderFamily("step5", hf_step.step5),
    "DbrxForCausalLM": DecoderFamily("dbrx", hf_singular.dbrx),
    "JetMoeForCausalLM": DecoderFamily("jetmoe", hf_singular.jetmoe),
    "ZambaForCausalLM": DecoderFamily("zamba", hf_singular.zamba),
    "ModernBertDecoderForCausalLM": DecoderFamily("modernbert-decoder", hf_singular.modernbert_decoder),
    "DiffLlamaForCausalLM": DecoderFamily("diffllama", hf_singular.diffllama),
    "Llama4ForCausalLM": DecoderFamily("llama4_text", hf_llama4.llama4, 8),
    "Emu3ForCausalLM": DecoderFamily("emu3_text_model", hf_dense.emu3, 8),
    "MllamaForCausalLM": DecoderFamily("mllama_text_model", hf_mllama.mllama, 8),
    "Glm5NextForCausalLM": DecoderFamily("glm5_next_text", hf_glm5.glm5_next),
}
"""Text-only decoders by architecture."""
BY_TYPE: Mapping[str, Callable[[Fields, str], ModelSpec]] = {
    family.model_type: family.read for family in reversed(list(TEXT_DECODERS.values()))
}
"""Readers of these by model type; the first of several."""
DECODERS: Mapping[str, DecoderFamily] = {
    **TEXT_DECODERS,
    **{
        name: DecoderFamily(family.model_type, hf_text_part.text_reader(family, BY_TYPE))
        for name, family in hf_text_part.MEDIA_FAMILIES.items()
    },
}
"""All decoders by architecture."""
