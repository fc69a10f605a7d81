"""The classes of processors, by the names that files of models say, or by model type. Imported in the child."""

from collections.abc import Mapping
from typing import Any, Final

import transformers as untyped_transformers

from stentor.engine.model_config.hf import nemotron_omni
from stentor.engine.model_config.hf.text_part import NEMOTRON_EMBED, described_part
from stentor.engine.model_config.seq2seq.pictured import PAIRED_TYPE, PARSE_TYPE

from .audio import (
    AudioFlamingo3Processor,
    FunAudioChatProcessor,
    GlmAsrProcessor,
    GraniteSpeechProcessor,
    MossTranscribeDiarizeProcessor,
    MusicFlamingoProcessor,
    Qwen3ASRProcessor,
    UltravoxProcessor,
    VoxtralProcessor,
)
from .fun_asr import FunAsrNanoProcessor, FunAsrProcessor
from .grids import (
    DeepseekV41Processor,
    DotsVLProcessor,
    ImagePadProcessor,
    KananaVProcessor,
    KimiK3Processor,
    KimiVLProcessor,
    Ling3VLProcessor,
    OpenCUAProcessor,
    OpenPanguProcessor,
)
from .images.apertus import ApertusImages, Emu3Images
from .images.cohere2 import Cohere2VisionImages
from .images.enlarged import PanguImages
from .images.formulas import FormulaImages
from .images.fuyu import FuyuImages
from .images.gemma4 import Gemma4UnifiedImages
from .images.inkling import Inkling2Images
from .images.keye import KeyeImages
from .images.kimi import KimiImages, KimiK3Images, KimiVLImages
from .images.lfm2_vl import Lfm2VlImages, Lfm2VlProcessor
from .images.llama4 import Llama4Images
from .images.minicpm import MiniCPMOcrImages, MiniCPMVImages
from .images.minimax import MiniMaxM3Images
from .images.molmo2 import Molmo2Images
from .images.perception_lm import PerceptionLMImages
from .images.phi4 import Phi4Images
from .images.step import StepImages
from .inkling import InklingProcessor
from .model_files import ModelFiles
from .pictures import (
    Blip2Processor,
    ColModernVBertProcessor,
    Cosmos3EdgeProcessor,
    FuyuProcessor,
    GotOcrProcessor,
    HunYuanVLProcessor,
    HYV4VLProcessor,
    Idefics2Processor,
    LonePictures,
    Phi4Processor,
    PixtralProcessor,
    SmolVLMProcessor,
    VideoLlama3Processor,
)
from .processor_name import processor_name
from .published import (
    ChatGLM4VProcessor,
    EagleProcessor,
    H2OVLProcessor,
    InternVLChatProcessor,
    IsaacProcessor,
    LlamaNemotronNanoVLProcessor,
    MuseProcessor,
    NemotronEmbedProcessor,
    NemotronOmniProcessor,
    NemotronParseProcessor,
    NemotronVLProcessor,
    NVLMProcessor,
    Ovis25Processor,
    OvisProcessor,
    Phi4SiglipProcessor,
    Pix2StructProcessor,
    UnlimitedOcrProcessor,
)
from .slices import CanvasSlicesProcessor, MergedSlicesProcessor, SampledSlicesProcessor
from .sounds import SOUND_PROCESSORS
from .tiled import DeepseekVL2Processor, MolmoProcessor, NormedOnevisionProcessor, Phi3VProcessor, Phi4MMProcessor
from .waveforms import ApertusProcessor, VibeVoiceAsrProcessor

transformers: Any = untyped_transformers

OWN: Final[Mapping[str, Any]] = {
    "Apertus1p5Processor": ApertusProcessor,
    "AudioFlamingo3Processor": AudioFlamingo3Processor,
    "Blip2Processor": Blip2Processor,
    "ChatGLM4VProcessor": ChatGLM4VProcessor,
    **dict.fromkeys(("BlipProcessor", "CLIPProcessor"), LonePictures),
    **dict.fromkeys(("DonutProcessor", "Florence2Processor", "NougatProcessor"), LonePictures),
    **dict.fromkeys(("PPFormulaNetProcessor", "TrOCRProcessor"), LonePictures),
    "ColModernVBertProcessor": ColModernVBertProcessor,
    "Cosmos3EdgeProcessor": Cosmos3EdgeProcessor,
    "DeepseekV41Processor": DeepseekV41Processor,
    "DeepseekVLV2Processor": DeepseekVL2Processor,
    "DotsVLProcessor": DotsVLProcessor,
    "Eagle2_5_VLProcessor": EagleProcessor,
    "FunAsrNanoProcessor": FunAsrNanoProcessor,
    "FunASRProcessor": FunAsrProcessor,
    "FunAudioChatProcessor": FunAudioChatProcessor,
    "FuyuProcessor": FuyuProcessor,
    "GlmAsrProcessor": GlmAsrProcessor,
    "GotOcr2Processor": GotOcrProcessor,
    "GraniteSpeechProcessor": GraniteSpeechProcessor,
    "H2OVLProcessor": H2OVLProcessor,
    "HunYuanVLProcessor": HunYuanVLProcessor,
    "HYV4VLProcessor": HYV4VLProcessor,
    "Idefics2Processor": Idefics2Processor,
    "InklingProcessor": InklingProcessor,
    "InternVLChatProcessor": InternVLChatProcessor,
    "IsaacProcessor": IsaacProcessor,
    **dict.fromkeys(("KeyeProcessor", "KeyeVL1_5Processor", "LlavaOnevision2Processor"), ImagePadProcessor),
    "KananaVProcessor": KananaVProcessor,
    "KimiK3Processor": KimiK3Processor,
    "KimiVLProcessor": KimiVLProcessor,
    "Lfm2VlProcessor": Lfm2VlProcessor,
    **dict.fromkeys(("MiniCPMOcrProcessor", "MiniCPMV4_6Processor"), MergedSlicesProcessor),
    **dict.fromkeys(("MiniCPMOProcessor", "MiniCPMVProcessor"), SampledSlicesProcessor),
    "MiniCPMV4_7Processor": CanvasSlicesProcessor,
    "Ling3VLProcessor": Ling3VLProcessor,
    "MolmoProcessor": MolmoProcessor,
    "MossTranscribeDiarizeProcessor": MossTranscribeDiarizeProcessor,
    **dict.fromkeys(("MuseGlimmerProcessor", "MuseSparkProcessor"), MuseProcessor),
    "MusicFlamingoProcessor": MusicFlamingoProcessor,
    "LlamaNemotronNanoVLProcessor": LlamaNemotronNanoVLProcessor,
    **dict.fromkeys(("NemotronParseImageProcessor", "NemotronParseProcessor"), NemotronParseProcessor),
    "NemotronVLProcessor": NemotronVLProcessor,
    "NemotronEmbedProcessor": NemotronEmbedProcessor,
    "NVLMProcessor": NVLMProcessor,
    "OpenCUAProcessor": OpenCUAProcessor,
    "OpenPanguVLProcessor": OpenPanguProcessor,
    "Ovis2_5Processor": Ovis25Processor,
    "OvisProcessor": OvisProcessor,
    "Phi3VProcessor": Phi3VProcessor,
    "Phi4MMProcessor": Phi4MMProcessor,
    "Phi4SiglipProcessor": Phi4SiglipProcessor,
    "Phi4MultimodalProcessor": Phi4Processor,
    "Pix2StructProcessor": Pix2StructProcessor,
    "PixtralProcessor": PixtralProcessor,
    "NormedOnevisionProcessor": NormedOnevisionProcessor,
    "Qwen3ASRProcessor": Qwen3ASRProcessor,
    "Step3VLProcessor": transformers.Step3p7Processor,
    "Siglip2Processor": LonePictures,
    "SiglipProcessor": LonePictures,
    "SmolVLMProcessor": SmolVLMProcessor,
    "UltravoxProcessor": UltravoxProcessor,
    "UnlimitedOcrProcessor": UnlimitedOcrProcessor,
    "VibeVoiceAsrProcessor": VibeVoiceAsrProcessor,
    "VideoLlama3Processor": VideoLlama3Processor,
    "VoxtralProcessor": VoxtralProcessor,
    **dict.fromkeys((f"{each}Processor" for each in nemotron_omni.ARCHITECTURES), NemotronOmniProcessor),
    **SOUND_PROCESSORS,
}
OWN_IMAGES: Final[Mapping[str, Any]] = {
    "Apertus1p5Processor": ApertusImages,
    "Cohere2VisionProcessor": Cohere2VisionImages,
    "Emu3Processor": Emu3Images,
    "FuyuProcessor": FuyuImages,
    "Gemma4UnifiedProcessor": Gemma4UnifiedImages,
    "Inkling2Processor": Inkling2Images,
    **dict.fromkeys(("KeyeProcessor", "KeyeVL1_5Processor"), KeyeImages),
    "KimiK3Processor": KimiK3Images,
    "KimiVLProcessor": KimiVLImages,
    "Kimi_K25Processor": KimiImages,
    "Lfm2VlProcessor": Lfm2VlImages,
    "Llama4Processor": Llama4Images,
    "OpenPanguVLProcessor": PanguImages,
    "PerceptionLMProcessor": PerceptionLMImages,
    "PPFormulaNetProcessor": FormulaImages,
    "Phi4MultimodalProcessor": Phi4Images,
    "MiniCPMOcrProcessor": MiniCPMOcrImages,
    **dict.fromkeys(("MiniCPMOProcessor", "MiniCPMVProcessor"), MiniCPMVImages),
    "MiniMaxM3VLProcessor": MiniMaxM3Images,
    "Molmo2Processor": Molmo2Images,
    **dict.fromkeys(("Step3VLProcessor", "Step3p7Processor"), StepImages),
    "VideoLlavaProcessor": transformers.CLIPImageProcessorPil,
    "PaddleOCRVLProcessor": transformers.PaddleOCRVLImageProcessorPil,
}
"""Image processors by the name of the processor, if transformers has none, or one for torchvision only, or files name
another."""
_UNNAMED: Final[Mapping[str, str]] = {
    "bailing_moe_v3_vl": "Ling3VLProcessor",
    **dict.fromkeys(("bee", "r_4b"), "NormedOnevisionProcessor"),
    "chatglm_4v": "ChatGLM4VProcessor",
    "deepseek_v41": "DeepseekV41Processor",
    "deepseek_vl_v2": "DeepseekVLV2Processor",
    "dots_ocr": "DotsVLProcessor",
    "eagle_2_5_vl": "Eagle2_5_VLProcessor",
    "funasr": "FunASRProcessor",
    "funaudiochat": "FunAudioChatProcessor",
    "h2ovl_chat": "H2OVLProcessor",
    "internvl_chat": "InternVLChatProcessor",
    "isaac": "IsaacProcessor",
    "kanana-1.5-v": "KananaVProcessor",
    **dict.fromkeys(("keye", "keye_vl1_5"), "KeyeProcessor"),
    "kimi_k3": "KimiK3Processor",
    "kimi_vl": "KimiVLProcessor",
    "llava_onevision2": "LlavaOnevision2Processor",
    "minicpmo": "MiniCPMOProcessor",
    "minicpmv": "MiniCPMVProcessor",
    "Llama_Nemotron_Nano_VL": "LlamaNemotronNanoVLProcessor",
    "NemotronH_Nano_VL_V2": "NemotronVLProcessor",
    **dict.fromkeys(NEMOTRON_EMBED, "NemotronEmbedProcessor"),
    **dict.fromkeys(nemotron_omni.PUBLISHED, f"{nemotron_omni.CLASS}Processor"),
    "molmo": "MolmoProcessor",
    "NVLM_D": "NVLMProcessor",
    "opencua": "OpenCUAProcessor",
    "openpangu_vl": "OpenPanguVLProcessor",
    "ovis": "OvisProcessor",
    "ovis2_5": "Ovis2_5Processor",
    "phi3_v": "Phi3VProcessor",
    "phi4_siglip": "Phi4SiglipProcessor",
    "phi4mm": "Phi4MMProcessor",
    "qwen2_5_omni_thinker": "Qwen2_5OmniProcessor",
    "qwen3_omni_moe_thinker": "Qwen3OmniMoeProcessor",
    **dict.fromkeys(("step5_vl", "step_vl"), "Step3VLProcessor"),
    "ultravox": "UltravoxProcessor",
    "unlimited-ocr": "UnlimitedOcrProcessor",
    PAIRED_TYPE: "TrOCRProcessor",
    PARSE_TYPE: "NemotronParseProcessor",
}
"""Processors by model type, if transformers has none and published files name none, or one of their own code."""
ALIKE: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("ColQwen3Processor", "ColQwen3_5Processor", "OpsColQwen3Processor", "Qwen3VLNemotronEmbedProcessor"),
        "Qwen3VLProcessor",
    ),
    "JinaEmbeddingsV4Processor": "Qwen2_5_VLProcessor",
}
"""Processors whose code comes with files, by those that process pictures alike."""


class ProcessorError(Exception):
    """The model's processor cannot be loaded; one line for the operator."""


def class_name(files: ModelFiles) -> str:
    """The name of a model's processor. Raises :class:`ProcessorError`."""
    config = files.read("config.json")
    model_type, said = described_part(config).get("model_type"), processor_name(files.source)
    # named by the code of its own files, or of another's
    other = said not in OWN and (model_type in _UNNAMED or model_type != config.get("model_type"))
    if said is not None and not (other and not hasattr(transformers, said)):
        return said
    known = {**transformers.models.auto.processing_auto.PROCESSOR_MAPPING_NAMES, **_UNNAMED}
    found = known.get(str(model_type))
    if not isinstance(found, str):
        raise ProcessorError(f"no file of {files} names a processor_class, and none is known for {model_type!r}")
    return found
