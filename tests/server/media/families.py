"""Tiny models that see, with the processors of published ones, for what makes their inputs: those of
:mod:`stentor.tests.support.vision_models`, and others of the parity tests."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import transformers as untyped_transformers

import stentor
from stentor.server.media.processors.images.cohere2 import Cohere2VisionImages
from stentor.server.media.processors.images.fuyu import FuyuImages
from stentor.server.media.processors.images.gemma4 import Gemma4UnifiedImages
from stentor.server.media.processors.images.kimi import KimiImages
from stentor.server.media.processors.images.lfm2_vl import Lfm2VlImages
from stentor.server.media.processors.images.llama4 import Llama4Images
from stentor.server.media.processors.images.minicpm import MiniCPMOcrImages
from stentor.server.media.processors.images.minimax import MiniMaxM3Images
from stentor.server.media.processors.images.molmo2 import Molmo2Images
from stentor.server.media.processors.images.nemotron import NemotronOmniImages
from stentor.server.media.processors.images.perception_lm import PerceptionLMImages
from stentor.server.media.processors.images.phi4 import Phi4Images
from stentor.server.media.processors.images.step import StepImages
from stentor.tests.parity.reading import ARIA_SIDE
from stentor.tests.parity.seeing import MAKERS
from stentor.tests.support.vision_models import (
    CHATML,
    FAMILIES,
    IDEFICS,
    LLAVA,
    PATCH,
    QWEN,
    SIDE,
    SPECIAL,
    VOCAB,
    Maker,
    write_processor,
)

transformers: Any = untyped_transformers

_SQUARE: Final = {"height": SIDE, "width": SIDE}
_EDGES: Final = {"shortest_edge": 4 * 64, "longest_edge": 64 * 64}
_GLM: Final = CHATML.replace("IMAGE", "<|begin_of_image|><|image_pad|><|end_of_image|>").replace(
    "VIDEO", "<|begin_of_video|><|video_pad|><|end_of_video|>"
)


_SOUND: Final = "{% elif content['type'] == 'audio' %}<so_embedding>{% elif 'text' in"
_GUIDE: Final = (Path(stentor.__file__).parent / "docs/guides/models.md").read_text()
PALIGEMMA, GOT_OCR, _BLIP2, _CHAMELEON, _FUYU = re.findall(r"```jinja\n(.*?)```", _GUIDE, re.DOTALL)[:5]
"""The templates of the guide."""


class _Processor(NamedTuple):
    """What stands beside the weights."""

    name: str
    images: Any
    template: str
    names: Mapping[str, str] = {}
    """Of the tokenizer's special tokens."""
    spelled: Mapping[str, str] = {}
    """Special tokens that it spells otherwise."""
    settings: Mapping[str, Any] = {}
    behind: str = ""
    """Its special token behind the vocabulary."""


def _glm(name: str, images: str, **sizes: Any) -> _Processor:
    spelled = {
        **{"<|vision_start|>": "<|begin_of_image|>", "<|vision_end|>": "<|end_of_image|>"},
        **{"<start_of_image>": "<|begin_of_video|>", "<end_of_image>": "<|end_of_video|>"},
    }
    made = getattr(transformers, images)(patch_size=PATCH, merge_size=2, **(sizes or {"size": _EDGES}))
    return _Processor(name, made, _GLM, {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}, spelled)


def _llava_next() -> _Processor:
    pinpoints = [[SIDE, 2 * SIDE], [2 * SIDE, SIDE]]
    images = transformers.LlavaNextImageProcessorPil(
        size={"shortest_edge": SIDE}, crop_size=_SQUARE, image_grid_pinpoints=pinpoints
    )
    settings = {"patch_size": PATCH, "vision_feature_select_strategy": "full"}
    return _Processor("LlavaNextProcessor", images, LLAVA, settings=settings)


_FILMS: Final = LLAVA.replace(
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text')",
    "{% for content in message['content'] | selectattr('type', 'equalto', 'video') %}{{ '<video>' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text')",
)
_BEHIND_ONE: Final = {
    "patch_size": PATCH,
    "vision_feature_select_strategy": "default",
    "num_additional_image_tokens": 1,
}


def _llava_next_video() -> _Processor:
    return _llava_next()._replace(name="LlavaNextVideoProcessor", template=_FILMS, settings=_BEHIND_ONE)


def _video_llava() -> _Processor:
    images = transformers.CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=_SQUARE)
    return _Processor("VideoLlavaProcessor", images, _FILMS, settings=_BEHIND_ONE)


def _blip2() -> _Processor:
    images = transformers.BlipImageProcessorPil(size=_SQUARE)
    return _Processor("Blip2Processor", images, _BLIP2, settings={"num_query_tokens": 5})


def _fuyu() -> _Processor:
    images = FuyuImages(size={"height": 5 * PATCH, "width": 6 * PATCH}, patch_size={"height": PATCH, "width": PATCH})
    spelled = {"<image>": "|SPEAKER|", "[IMG_BREAK]": "|NEWLINE|"}
    return _Processor("FuyuProcessor", images, _FUYU, spelled=spelled)


def _gemma4() -> _Processor:
    images = transformers.Gemma4ImageProcessorPil(patch_size=PATCH, pooling_kernel_size=2, max_soft_tokens=70)
    names = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    # transformers' processor wants these of any tokenizer; the last is one of pictures that stands for nothing here
    names |= {"audio_token": "<img>", "boa_token": "</img>", "eoa_token": "<global-img>"}
    template = CHATML.replace("IMAGE", "<image_soft_token>").replace("VIDEO", "<|video|>")
    return _Processor("Gemma4Processor", images, template, names, {"<video>": "<|video|>"})


def _ovis2() -> _Processor:
    images = transformers.Ovis2ImageProcessorPil(size=_SQUARE, crop_to_patches=True, max_patches=6)
    marks = ("<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")
    places = [f"<row_{row}_col_{column}>" for row, column in ((1, 1), (1, 2), (1, 3), (2, 1), (2, 2))]
    spelled = {"<image>": "<IMG_ATOM>", **dict(zip(places, marks, strict=True))}
    template = CHATML.replace("IMAGE", "<image>\n")
    return _Processor("Ovis2Processor", images, template, spelled=spelled, settings={"image_seq_length": 4})


def _lighton_ocr() -> _Processor:
    edge = {"longest_edge": 2 * SIDE}
    images = transformers.PixtralImageProcessorPil(size=edge, patch_size={"height": 2 * PATCH, "width": 2 * PATCH})
    names = {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
    settings = {"patch_size": PATCH, "spatial_merge_size": 2}
    return _Processor("LightOnOcrProcessor", images, CHATML.replace("IMAGE", "[IMG]"), names, settings=settings)


def _aya_vision() -> _Processor:
    images = transformers.GotOcr2ImageProcessorPil(size=_SQUARE, crop_to_patches=True, max_patches=6)
    spelled = {"<image>": "<|IMG_PATCH|>", "<img>": "<|START_OF_IMG|>", "</img>": "<|END_OF_IMG|>"}
    template = CHATML.replace("IMAGE", "<image>")
    settings = {"patch_size": PATCH, "img_size": SIDE, "downsample_factor": 2}
    return _Processor("AyaVisionProcessor", images, template, spelled=spelled, settings=settings)


def _cohere2_vision() -> _Processor:
    images = Cohere2VisionImages(size=_SQUARE, max_patches=6, patch_size=2)
    names = {"boi_token": "<img>", "eoi_token": "</img>", "image_token": "<image>"}
    names |= {"img_line_break_token": "[IMG_BREAK]"}
    return _Processor("Cohere2VisionProcessor", images, CHATML.replace("IMAGE", "<image>"), names)


def _lfm2_vl() -> _Processor:
    images = Lfm2VlImages(encoder_patch_size=PATCH, tile_size=SIDE, min_image_tokens=2, max_image_tokens=6, max_tiles=6)
    return _Processor("Lfm2VlProcessor", images, CHATML.replace("IMAGE", "<image>"))


def _llama4() -> _Processor:
    images = Llama4Images(size=_SQUARE, max_patches=6)
    spelled = {
        **{"<image>": "<|patch|>", "<IMG_CONTEXT>": "<|image|>", "<img>": "<|image_start|>", "</img>": "<|image_end|>"},
        **{"<row_1_col_1>": "<|tile_x_separator|>", "<row_1_col_2>": "<|tile_y_separator|>"},
    }
    template = CHATML.replace("IMAGE", "<|image|>")
    return _Processor("Llama4Processor", images, template, spelled=spelled, settings={"patch_size": PATCH})


def _kimi() -> _Processor:
    images = KimiImages(patch_size=PATCH, merge_size=2, max_patches=64)
    names = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
    return _Processor("Kimi_K25Processor", images, CHATML.replace("IMAGE", "<|image_pad|>"), names)


def _minimax_m3() -> _Processor:
    images = MiniMaxM3Images(patch_size=PATCH, temporal_patch_size=2, merge_size=2, size=_EDGES)
    spelled = {
        **{"<|image_pad|>": "]<]image[>[", "<|video_pad|>": "]<]video[>["},
        **{"<|vision_start|>": "]<]start of image[>[", "<|vision_end|>": "]<]end of image[>["},
    }
    return _Processor("MiniMaxM3VLProcessor", images, CHATML.replace("IMAGE", "]<]image[>["), spelled=spelled)


def _step() -> _Processor:
    images = StepImages(size=_SQUARE, patch_size=8 * PATCH, vision_patch_size=PATCH)
    spelled = {
        **{"<image>": "<im_patch>", "<img>": "<im_start>", "</img>": "<im_end>"},
        **{"<start_of_image>": "<patch_start>", "<end_of_image>": "<patch_end>", "[IMG_BREAK]": "<patch_newline>"},
    }
    return _Processor("Step3p7Processor", images, CHATML.replace("IMAGE", "<im_patch>"), spelled=spelled)


def _paddleocr_vl() -> _Processor:
    images = transformers.PaddleOCRVLImageProcessorPil(patch_size=PATCH, merge_size=2, size=_EDGES)
    spelled = {
        **{"<|vision_start|>": "<|IMAGE_START|>", "<|vision_end|>": "<|IMAGE_END|>"},
        "<|image_pad|>": "<|IMAGE_PLACEHOLDER|>",
    }
    template = CHATML.replace("IMAGE", "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>")
    return _Processor("PaddleOCRVLProcessor", images, template, {"image_token": "<|IMAGE_PLACEHOLDER|>"}, spelled)


def _qwen_like(name: str) -> _Processor:
    images = transformers.Qwen2VLImageProcessorPil(patch_size=PATCH, temporal_patch_size=2, merge_size=2, size=_EDGES)
    names = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
    return _Processor(name, images, QWEN, names)


def _cosmos3_edge() -> _Processor:
    images = transformers.Cosmos3EdgeImageProcessorPil(patch_size=PATCH, merge_size=2, size=_EDGES)
    return _qwen_like("Cosmos3EdgeProcessor")._replace(images=images)


def _deepseek_ocr2() -> _Processor:
    # 144 embeddings of a square of 12 by 12 times 64 pixels, as many as the tower makes of any
    images = transformers.DeepseekOcr2ImageProcessorPil(size={"height": 768, "width": 768}, tile_size=768)
    return _Processor("DeepseekOcr2Processor", images, CHATML.replace("IMAGE", "<image>\n"))


def _idefics2() -> _Processor:
    images = transformers.Idefics2ImageProcessorPil(
        size={"shortest_edge": 2 * PATCH, "longest_edge": 8 * PATCH}, do_image_splitting=True
    )
    names = {"image_token": "<image>", "image_boundary_token": "<fake_token_around_image>"}
    return _Processor("Idefics2Processor", images, IDEFICS, names, settings={"image_seq_len": 4})


def _got_ocr2() -> _Processor:
    images = transformers.GotOcr2ImageProcessorPil(size={"height": 64, "width": 64})
    spelled = {"<image>": "<imgpad>"}
    return _Processor("GotOcr2Processor", images, GOT_OCR, spelled=spelled, settings={"num_image_tokens": 16})


def _phi4() -> _Processor:
    images = Phi4Images(size=_SQUARE, patch_size=PATCH, dynamic_hd=6)
    template = CHATML.replace("IMAGE", "<|image|>")
    return _Processor(
        "Phi4MultimodalProcessor", images, template, {"image_token": "<|image|>"}, {"<image>": "<|image|>"}
    )


def _gemma4_unified() -> _Processor:
    images = Gemma4UnifiedImages(patch_size=PATCH // 2, pooling_kernel_size=2, max_soft_tokens=70)
    made = _gemma4()
    return made._replace(name="Gemma4UnifiedProcessor", images=images)


def _granite4_vision() -> _Processor:
    made = _llava_next()
    settings = {**made.settings, "downsample_rate": "1/2"}
    return made._replace(name="Granite4VisionProcessor", settings=settings)


def _aria() -> _Processor:
    template = CHATML.replace("IMAGE", "<image>")
    images, settings = transformers.AriaImageProcessorPil(), {"size_conversion": {str(ARIA_SIDE): 3}}
    return _Processor("AriaProcessor", images, template, {"image_token": "<image>"}, settings=settings)


def _video_llama_3() -> _Processor:
    images = transformers.VideoLlama3ImageProcessorPil(patch_size=PATCH, merge_size=2, size=_EDGES)
    return _qwen_like("VideoLlama3Processor")._replace(images=images)


def _ernie_vl() -> _Processor:
    images = transformers.Ernie4_5_VLMoeImageProcessorPil(patch_size=PATCH, size=_EDGES)
    names = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
    names |= {"image_start_token": "<|vision_start|>", "image_end_token": "<|vision_end|>"}
    names |= {"video_start_token": "<start_of_image>", "video_end_token": "<end_of_image>"}
    return _Processor("Ernie4_5_VLMoeProcessor", images, QWEN, names)


def _granite_docling() -> _Processor:
    images = transformers.GraniteDoclingImageProcessorPil(size=_SQUARE, max_patches=6)
    return _Processor("GraniteDoclingProcessor", images, IDEFICS, settings={"image_seq_len": 4})


def _hunyuan_vl() -> _Processor:
    images = transformers.HunYuanVLImageProcessorPil(patch_size=PATCH, size=_EDGES)
    names = {"image_token": "<|image_pad|>", "image_start_token": "<|vision_start|>"}
    return _Processor("HunYuanVLProcessor", images, QWEN, {**names, "image_end_token": "<|vision_end|>"})


def _hy_v4_vl() -> _Processor:
    images = transformers.HYV4VLImageProcessorPil(patch_size=PATCH, size=_EDGES)
    return _qwen_like("HYV4VLProcessor")._replace(images=images)


def _nemotron_omni() -> _Processor:
    images = NemotronOmniImages(patch_size=PATCH, min_num_patches=16, max_num_patches=96, video_target_num_patches=24)
    template = CHATML.replace("IMAGE", "<image>").replace("VIDEO", "<video>").replace("{% elif 'text' in", _SOUND, 1)
    spelled = {"<video>": "<so_embedding>", "[INST]": "<so_start>", "[/INST]": "<so_end>", "<global-img>": "<video>"}
    return _Processor("NemotronH_Omni_Reasoning_V3Processor", images, template, {"image_token": "<image>"}, spelled)


def _mllama() -> _Processor:
    images = transformers.MllamaImageProcessorPil(size=_SQUARE, max_image_tiles=4)
    template = "{{ bos_token }}" + CHATML.replace("IMAGE", "<|image|>")
    return _Processor("MllamaProcessor", images, template, {"image_token": "<|image|>"}, behind="<|image|>")


def _paligemma() -> _Processor:
    images = transformers.SiglipImageProcessorPil(size=_SQUARE, image_seq_length=16)
    return _Processor("PaliGemmaProcessor", images, PALIGEMMA, {"image_token": "<image>"})


def _minicpmv4_6() -> _Processor:
    images = transformers.MiniCPMV4_6ImageProcessorPil(patch_size=PATCH, scale_resolution=32, max_slice_nums=4)
    return _minicpm("MiniCPMV4_6Processor", images)


def _minicpmv4_7() -> _Processor:
    return _minicpmv4_6()._replace(name="MiniCPMV4_7Processor")


def _minicpm_ocr() -> _Processor:
    return _minicpm("MiniCPMOcrProcessor", MiniCPMOcrImages(patch_size=PATCH, scale_resolution=32, max_slice_nums=4))


def _minicpm(name: str, images: Any) -> _Processor:
    spelled = {"<img>": "<slice>", "</img>": "</slice>", "<row_1_col_1>": "<image_id>", "<row_1_col_2>": "</image_id>"}
    parts = ("vision", "<|vision_start|>", "<|vision_end|>"), ("slice", "<slice>", "</slice>")
    names = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
    for part, start, end in (*parts, ("image_id", "<image_id>", "</image_id>")):
        part = part.replace("vision", "image")
        names |= {f"{part}_start_token": start, f"{part}_end_token": end}
    return _Processor(name, images, CHATML.replace("IMAGE", "<|image_pad|>\n"), names, spelled)


def _deepseek_vl() -> _Processor:
    images = transformers.DeepseekVLImageProcessorPil(size=_SQUARE, min_size=2)
    settings = {"num_image_tokens": 16}
    return _Processor(
        "DeepseekVLProcessor", images, CHATML.replace("IMAGE", "<image>"), {"image_token": "<image>"}, settings=settings
    )


def _deepseek_vl_hybrid() -> _Processor:
    images = transformers.DeepseekVLHybridImageProcessorPil(
        size=_SQUARE, high_res_size={"height": 64, "width": 64}, min_size=2
    )
    return _deepseek_vl()._replace(name="DeepseekVLHybridProcessor", images=images)


def _janus() -> _Processor:
    images = transformers.JanusImageProcessorPil(size=_SQUARE, min_size=2)
    names = {"image_token": "<image>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    return _deepseek_vl()._replace(name="JanusProcessor", images=images, names=names)


def _molmo2() -> _Processor:
    images = Molmo2Images(size=_SQUARE, patch_size=PATCH, overlap_margins=[1, 1], max_crops=6)
    spelled = {
        **{"<image>": "<im_patch>", "[IMG]": "<im_start>", "[IMG_BREAK]": "<im_col>", "[IMG_END]": "<im_end>"},
        **{"<start_of_image>": "<low_res_im_start>", "<img>": "<frame_start>", "</img>": "<frame_end>"},
        **{"<IMG_CONTEXT>": "<|image|>", "<video>": "<|video|>"},
    }
    template = CHATML.replace("IMAGE", "<|image|>").replace("VIDEO", "<|video|>")
    return _Processor("Molmo2Processor", images, template, spelled=spelled)


def _perception_lm() -> _Processor:
    images = PerceptionLMImages(tile_size=SIDE, max_num_tiles=6)
    names = {"image_token": "<image>", "video_token": "<video>"}
    template = CHATML.replace("IMAGE", "<image>").replace("VIDEO", "<video>")
    return _Processor(
        "PerceptionLMProcessor", images, template, names, settings={"patch_size": PATCH, "pooling_ratio": 2}
    )


def _fast_vlm() -> _Processor:
    images = transformers.CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=_SQUARE)
    settings = {"patch_size": SIDE // 2, "vision_feature_select_strategy": "full"}
    return _Processor("LlavaProcessor", images, LLAVA, settings=settings)


def _chameleon() -> _Processor:
    images = transformers.ChameleonImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=_SQUARE)
    names = {"image_token": "<image>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    return _Processor("ChameleonProcessor", images, _CHAMELEON, names, settings={"image_seq_length": 16})


def _emu3() -> _Processor:
    images = transformers.Emu3ImageProcessor(min_pixels=8 * 8 * 4, max_pixels=8 * 8 * 24)
    names = {"image_token": "<image>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    names |= {"image_wrapper_token": "<image_soft_token>", "eof_token": "<end_of_utterance>"}
    return _Processor("Emu3Processor", images, LLAVA.replace("<image>\n", "<image>"), names)


_PROCESSORS: Final = {
    "emu3": _emu3,
    "chameleon": _chameleon,
    "fast_vlm": _fast_vlm,
    "fuyu": _fuyu,
    "molmo2": _molmo2,
    "perception_lm": _perception_lm,
    "granite_vision": _llava_next,
    "llava_next_video": _llava_next_video,
    "video_llava": _video_llava,
    "glm4v": lambda: _glm("Glm4vProcessor", "Glm4vImageProcessorPil"),
    "glm46v": lambda: _glm("Glm46VProcessor", "Glm46VImageProcessorPil"),
    "glm5_next": lambda: _glm(
        "Glm5NextProcessor", "Glm5NextImageProcessorPil", min_image_tokens=4, max_image_tokens=64
    ),
    "paddleocr_vl": _paddleocr_vl,
    "deepseek_ocr2": _deepseek_ocr2,
    "deepseek_vl": _deepseek_vl,
    "deepseek_vl_hybrid": _deepseek_vl_hybrid,
    "janus": _janus,
    "got_ocr2": _got_ocr2,
    "idefics2": _idefics2,
    "phi4_multimodal": _phi4,
    "minicpmv4_6": _minicpmv4_6,
    "minicpmv4_7": _minicpmv4_7,
    "blip2": _blip2,
    "mllama": _mllama,
    "nemotron_omni": _nemotron_omni,
    "minicpm_ocr": _minicpm_ocr,
    "paligemma": _paligemma,
    "exaone4_5": lambda: _qwen_like("Exaone4_5_Processor"),
    "cosmos3_edge": _cosmos3_edge,
    "cosmos3": lambda: _qwen_like("Qwen3VLProcessor"),
    "hyperclovax_vision": lambda: _qwen_like("HyperCLOVAXVisionV2Processor"),
    "lfm3_vl": lambda: _qwen_like("Lfm3VlProcessor"),
    "gemma4_large": _gemma4,
    "gemma4_unified": _gemma4_unified,
    "granite4_vision": _granite4_vision,
    "granite_docling": _granite_docling,
    "hunyuan_vl": _hunyuan_vl,
    "hy_v4_vl": _hy_v4_vl,
    "ernie_vl": _ernie_vl,
    "aria": _aria,
    "video_llama_3": _video_llama_3,
    "ovis2": _ovis2,
    "lighton_ocr": _lighton_ocr,
    "aya_vision": _aya_vision,
    "cohere2_vision": _cohere2_vision,
    "lfm2_vl": _lfm2_vl,
    "llama4": _llama4,
    "kimi_k25": _kimi,
    "minimax_m3": _minimax_m3,
    "step": _step,
}


def _special(made: _Processor) -> Sequence[str]:
    found = [made.spelled.get(text, text) for text in SPECIAL]
    unused = [f"<unused_{number}>" for number in range(256 + len(found), VOCAB)]
    return [*found, *unused, made.behind] if made.behind else found


def _with_processor(name: str) -> Maker:
    def make(folder: Path) -> Any:
        model = MAKERS[name](folder)
        made = _PROCESSORS[name]()
        write_processor(
            folder,
            made.name,
            made.images,
            made.template,
            names=made.names,
            special=_special(made),
            **made.settings,
        )
        return model

    return make


LAID_OUT: Final[Mapping[str, Maker]] = {
    name: _with_processor(name)
    for name in (
        "blip2",
        "chameleon",
        "fuyu",
        "got_ocr2",
        "idefics2",
        "minicpm_ocr",
        "minicpmv4_6",
        "minicpmv4_7",
        "nemotron_omni",
        "paligemma",
    )
}
"""Those whose processors write more than pictures into a text, or number these, or are not transformers'."""
PROCESSED: Final[Mapping[str, Maker]] = {
    **FAMILIES,
    **{name: _with_processor(name) for name in _PROCESSORS if name not in LAID_OUT},
}
"""By name; as :data:`stentor.tests.support.vision_models.FAMILIES`."""
