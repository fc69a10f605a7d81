"""What tiny models whose code comes with their checkpoints bring besides their weights, with the names that published
files have."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.loading.checkpoint import open_checkpoint
from stentor.engine.loading.weights import tower_weights
from stentor.engine.models.towers.audio_tower import native_audio_tower
from stentor.engine.models.towers.vision_tower import native_tower
from stentor.engine.models.transformers.tower import TransformersTower
from stentor.tests.parity.published import PUBLISHED
from stentor.tests.parity.published_slices import QUERIES
from stentor.tests.server.media.test_prompts import Family, family_in
from stentor.tests.support.vision_models import CHATML, PAD, PATCH, QWEN, SIDE, SPECIAL, write_tokenizer

_HALF: Final = [0.5, 0.5, 0.5]


class _Files(NamedTuple):
    """Beside the weights."""

    template: str
    files: Mapping[str, Mapping[str, Any]]
    spelled: Mapping[str, str] = {}
    """Special tokens that the tokenizer spells otherwise."""
    names: Mapping[str, str] = {}
    """Of the tokenizer's special tokens."""
    untold: str = ""
    """A field of config.json that published ones leave out, where tests without a tokenizer need it."""


_CONTENT: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A template that knows texts alone, as that of Llama."""
_COUNTING: Final = CHATML.replace("{% for message", "{% set count = namespace(value=0) %}{% for message", 1)
_FILES: Final[Mapping[str, _Files]] = {
    "eagle2_5": _Files(
        _COUNTING.replace("IMAGE", "{% set count.value = count.value + 1 %}<image-{{ count.value }}>"),
        {
            "preprocessor_config.json": {
                **{"image_processor_type": "Eagle2_5_VLImageProcessorFast", "image_mean": _HALF, "image_std": _HALF},
                **{"size": {"height": SIDE, "width": SIDE}, "max_dynamic_tiles": 6, "min_dynamic_tiles": 1},
                **{"use_thumbnail": True, "pad_during_tiling": False},
            }
        },
    ),
    "bee": _Files(
        CHATML.replace("IMAGE", "<image>\n"),
        {
            "preprocessor_config.json": {
                **{"image_processor_type": "BeeImageProcessor", "processor_class": "BeeProcessor"},
                **{"size": {"height": SIDE, "width": SIDE}, "image_mean": _HALF, "image_std": _HALF},
                "image_grid_pinpoints": [[rows * SIDE, columns * SIDE] for rows in (1, 2) for columns in (1, 2, 3)],
            }
        },
    ),
    "chatglm_4v": _Files(
        CHATML.replace("IMAGE", "<|begin_of_image|><|endoftext|><|end_of_image|>"),
        {},
        {PAD: "<|endoftext|>", "<img>": "<|begin_of_image|>", "</img>": "<|end_of_image|>"},
    ),
    "dots_ocr": _Files(
        CHATML.replace("IMAGE", "<|img|><|imgpad|><|endofimg|>"),
        {
            "preprocessor_config.json": {
                **{"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "DotsVLProcessor"},
                **{"min_pixels": 256, "max_pixels": 1024, "patch_size": PATCH, "temporal_patch_size": 1},
                **{"merge_size": 2, "image_mean": _HALF, "image_std": _HALF},
            }
        },
        {"<|image_pad|>": "<|imgpad|>", "<|vision_start|>": "<|img|>", "<|vision_end|>": "<|endofimg|>"},
    ),
    "funaudiochat": _Files(
        _CONTENT,
        {
            "preprocessor_config.json": {
                **{"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 8, "chunk_length": 4},
                **{"n_fft": 400, "hop_length": 160, "sampling_rate": 16_000, "return_attention_mask": True},
            }
        },
        {"<video>": "<|AUDIO|>", "<|vision_start|>": "<|audio_bos|>", "<|vision_end|>": "<|audio_eos|>"},
    ),
    "deepseek_ocr": _Files(
        CHATML.replace("IMAGE", "<image>\n"),
        {
            "processor_config.json": {"processor_class": "DeepseekVLV2Processor", "patch_size": 16},
            "preprocessor_config.json": {"size": {"height": 128, "width": 128}, "tile_size": 64},
        },
    ),
    "unlimited_ocr_published": _Files(
        CHATML.replace("IMAGE", "<image>\n"),
        {"preprocessor_config.json": {"size": {"height": 704, "width": 704}, "tile_size": 64}},
    ),
    "deepseek_vl2": _Files(
        CHATML.replace("IMAGE", "<image>\n"),
        {
            "processor_config.json": {
                **{"processor_class": "DeepseekVLV2Processor", "image_mean": _HALF, "image_std": _HALF},
                **{"downsample_ratio": 2, "patch_size": PATCH, "image_token": "<image>"},
            }
        },
        untold="image_token_id",
    ),
    "h2ovl": _Files(
        _CONTENT,
        {
            "preprocessor_config.json": {
                **{"feature_extractor_type": "CLIPFeatureExtractor", "crop_size": SIDE, "size": SIDE},
                **{"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]},
            }
        },
        untold="img_context_token_id",
    ),
    "internvl_chat": _Files(
        CHATML.replace("IMAGE", "<image>\n"),
        {
            "preprocessor_config.json": {
                **{"feature_extractor_type": "CLIPFeatureExtractor", "crop_size": SIDE, "size": SIDE},
                **{"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]},
            }
        },
    ),
    "nvlm_d": _Files(
        CHATML.replace("IMAGE", "<image>\n"),
        {
            "preprocessor_config.json": {
                **{"feature_extractor_type": "CLIPFeatureExtractor", "crop_size": SIDE, "size": SIDE},
                **{"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]},
            }
        },
        {"<IMG_CONTEXT>": "<|vision_pad|>"},
        untold="img_context_token_id",
    ),
    "skywork_r1v": _Files(
        CHATML.replace("IMAGE", "<image>\n"),
        {"preprocessor_config.json": {"feature_extractor_type": "CLIPFeatureExtractor", "crop_size": SIDE}},
        untold="img_context_token_id",
    ),
    "ovis2_6": _Files(
        CHATML.replace("IMAGE", "<image>\n"),
        {
            "preprocessor_config.json": {
                **{"image_processor_type": "SiglipImageProcessor", "image_mean": _HALF, "image_std": _HALF},
                **{"resample": 2, "size": {"height": 24, "width": 24}, "min_pixels": 256, "max_pixels": 1024},
            }
        },
        {"<image>": "<unused>"},
    ),
    "qianfan_ocr": _Files(
        CHATML.replace("IMAGE", "<image>\n"),
        {
            "preprocessor_config.json": {
                **{"image_processor_type": "GotOcr2ImageProcessor", "size": {"height": SIDE, "width": SIDE}},
                **{"crop_to_patches": True, "max_patches": 6},
            },
            "processor_config.json": {"processor_class": "QianfanOCRProcessor", "image_seq_length": 4},
        },
        names={
            **{"start_image_token": "<img>", "end_image_token": "</img>"},
            "context_image_token": "<IMG_CONTEXT>",
        },
    ),
    "isaac": _Files(CHATML.replace("IMAGE", "<image>"), {}, untold="image_token_id"),
    "keye": _Files(
        CHATML.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>"),
        {
            "preprocessor_config.json": {
                **{"image_processor_type": "SiglipImageProcessor", "processor_class": "KeyeProcessor"},
                **{"auto_map": {"AutoImageProcessor": "image_processing_keye.SiglipImageProcessor"}},
                **{"min_pixels": 256, "max_pixels": 1024, "patch_size": PATCH, "temporal_patch_size": 1},
                **{"merge_size": 2, "image_mean": _HALF, "image_std": _HALF},
            }
        },
    ),
    "ling3_vl": _Files(
        QWEN,
        {
            "preprocessor_config.json": {
                **{"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "BailingVLProcessor"},
                **{"min_pixels": 256, "max_pixels": 1024, "patch_size": PATCH, "temporal_patch_size": 2},
                **{"merge_size": 2, "image_mean": _HALF, "image_std": _HALF},
            }
        },
    ),
    "llava_onevision2": _Files(
        QWEN,
        {
            "preprocessor_config.json": {
                **{"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "LlavaOnevision2Processor"},
                **{"min_pixels": 256, "max_pixels": 1024, "patch_size": PATCH, "temporal_patch_size": 1},
                **{"merge_size": 2, "image_mean": _HALF, "image_std": _HALF, "codec": {"backend": "av"}},
            }
        },
    ),
    "molmo": _Files(
        CHATML.replace("IMAGE", "<|image|>"),
        {
            "preprocessor_config.json": {
                **{"image_processor_type": "MolmoImageProcessor", "processor_class": "MolmoProcessor"},
                **{"base_image_input_size": [2 * SIDE, 2 * SIDE], "image_patch_size": PATCH, "max_crops": 6},
                **{"overlap_margins": [2, 2], "image_token_length_h": 4, "image_token_length_w": 4},
                **{"image_mean": _HALF, "image_std": _HALF, "image_padding_mask": True, "do_normalize": True},
            }
        },
        {
            **{"<image>": "<im_patch>", "<img>": "<im_start>", "</img>": "<im_end>", "[IMG_BREAK]": "<im_col>"},
            "<|image_pad|>": "<|image|>",
        },
        untold="image_token_id",
    ),
    "opencua": _Files(
        CHATML.replace("IMAGE", "<|media_begin|>image<|media_content|><|media_placeholder|><|media_end|>"),
        {
            "preprocessor_config.json": {
                **{"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 256, "max_pixels": 1024},
                **{"patch_size": PATCH, "temporal_patch_size": 2, "merge_size": 2},
                **{"image_mean": _HALF, "image_std": _HALF},
            }
        },
        {
            **{"<|image_pad|>": "<|media_placeholder|>", "<|vision_start|>": "<|media_begin|>"},
            **{"<|vision_end|>": "<|media_end|>", "<image>": "<|media_content|>"},
        },
    ),
    "kanana_v": _Files(
        CHATML.replace("IMAGE", "<image>"),
        {
            "preprocessor_config.json": {
                **{"image_processor_type": "KananaVImageProcessor", "processor_class": "KananaVProcessor"},
                **{"min_pixels": 256, "max_pixels": 1024, "patch_size": PATCH, "temporal_patch_size": 2},
                **{"merge_size": 2, "image_mean": _HALF, "image_std": _HALF},
            }
        },
        {"<|image_pad|>": "<|reserved_special_token_0|>"},
    ),
    "openpangu_vl": _Files(
        CHATML.replace("IMAGE", "[unused18][unused19][unused20]"),
        {
            "preprocessor_config.json": {
                **{"image_processor_type": "OpenPanguVLImageProcessorFast", "processor_class": "OpenPanguVLProcessor"},
                **{"min_pixels": 256, "max_pixels": 1024, "patch_size": PATCH, "temporal_patch_size": 1},
                **{"merge_size": 2, "image_mean": _HALF, "image_std": _HALF},
            }
        },
        {"<|vision_start|>": "[unused18]", "<|image_pad|>": "[unused19]", "<|vision_end|>": "[unused20]"},
    ),
    "deepseek_v41": _Files(
        CHATML.replace("IMAGE", "<｜deepseek_image｜>"), {}, {"<|image_pad|>": "<｜deepseek_image｜>"}
    ),
    "phi3_v": _Files(
        _COUNTING.replace("IMAGE", "{% set count.value = count.value + 1 %}<|image_{{ count.value }}|>"),
        {
            "preprocessor_config.json": {
                **{"image_processor_type": "Phi3VImageProcessor", "processor_class": "Phi3VProcessor"},
                **{"size": {"height": SIDE, "width": SIDE}, "num_crops": 6, "num_img_tokens": 144},
            }
        },
        {"<image>": "<|image|>"},
        untold="image_token_id",
    ),
    "phi4mm": _Files(
        _CONTENT,
        {
            "preprocessor_config.json": {
                **{"image_processor_type": "Phi4MMImageProcessor", "processor_class": "Phi4MMProcessor"},
                **{"feature_extractor_type": "Phi4MMAudioFeatureExtractor", "dynamic_hd": 6},
                **{"size": {"height": SIDE, "width": SIDE}, "patch_size": PATCH},
            }
        },
        {"<image>": "<|endoftext10|>"},
    ),
    "phi4_siglip": _Files(
        _CONTENT,
        {
            "preprocessor_config.json": {
                **{"image_processor_type": "Siglip2ImageProcessorNoUpscale", "processor_class": "Phi4VisionRProcessor"},
                **{"min_num_patches": 16, "max_num_patches": 48, "patch_size": PATCH, "resample": 2},
            }
        },
        {"<|image_pad|>": "<|dummy_0|>"},
        untold="image_token_id",
    ),
    "step_vl": _Files(
        CHATML.replace("IMAGE", "<im_patch>"),
        {
            "preprocessor_config.json": {
                **{"processor_class": "Step3VLProcessor", "size": {"height": SIDE, "width": SIDE}},
                **{"patch_size": 8 * PATCH, "vision_patch_size": PATCH, "max_image_size": 64},
            }
        },
        {
            **{"<image>": "<im_patch>", "<img>": "<im_start>", "</img>": "<im_end>"},
            **{"<start_of_image>": "<patch_start>", "<end_of_image>": "<patch_end>", "[IMG_BREAK]": "<patch_newline>"},
        },
    ),
    "kimi_k3": _Files(
        CHATML.replace("IMAGE", "<|kimi_image_placeholder|>"),
        {
            "preprocessor_config.json": {
                "auto_map": {"AutoImageProcessor": "kimi_k3_vision_processing.KimiK3VisionProcessor"},
                "media_proc_cfg": {
                    **{"in_patch_limit": 64, "patch_size": PATCH, "merge_kernel_size": 2, "image_mean": _HALF},
                    **{"image_std": _HALF, "patch_limit_on_one_side": 512, "fixed_output_tokens": None},
                },
            }
        },
        {
            **{"<|image_pad|>": "<|media_pad|>", "<|vision_start|>": "<|media_begin|>"},
            **{"<|vision_end|>": "<|media_end|>", "<image>": "<|media_content|>"},
        },
    ),
    "kimi_vl": _Files(
        CHATML.replace("IMAGE", "<|media_start|>image<|media_content|><|media_pad|><|media_end|>"),
        {
            "preprocessor_config.json": {
                **{"auto_map": {"AutoProcessor": "processing_kimi_vl.KimiVLProcessor"}, "in_token_limit": 64},
                **{"patch_size": PATCH, "pad_input": True, "image_mean": _HALF, "image_std": _HALF},
                **{"merge_kernel_size": [2, 2], "image_processor_type": "KimiVLImageProcessor"},
            }
        },
        {
            **{"<|image_pad|>": "<|media_pad|>", "<|vision_start|>": "<|media_start|>"},
            **{"<|vision_end|>": "<|media_end|>", "<image>": "<|media_content|>"},
        },
    ),
    "llama_nemotron_vl": _Files(
        CHATML.replace("IMAGE", "<image>\n"), {"preprocessor_config.json": {"max_num_tiles": 6}}
    ),
    "minicpmv_2_6": _Files(
        _CONTENT,
        {
            "preprocessor_config.json": {
                **{"image_processor_type": "MiniCPMVImageProcessor", "processor_class": "MiniCPMVProcessor"},
                **{"max_slice_nums": 4, "scale_resolution": 40, "patch_size": PATCH, "use_image_id": True},
                **{"image_feature_size": QUERIES, "slice_mode": True, "norm_mean": _HALF, "norm_std": _HALF},
                **{"im_start": "<image>", "im_end": "</image>", "slice_start": "<slice>", "slice_end": "</slice>"},
                **{"unk": "<unk>", "im_id_start": "<image_id>", "im_id_end": "</image_id>", "version": 2.6},
            }
        },
        {
            **{"<image>": "<unk>", "<img>": "<image>", "</img>": "</image>", "<row_1_col_1>": "<slice>"},
            **{"<row_1_col_2>": "</slice>", "<row_1_col_3>": "<image_id>", "<row_2_col_1>": "</image_id>"},
        },
        untold="image_token_id",
    ),
    "ovis": _Files(
        CHATML.replace("IMAGE", "<image>\n"),
        {
            "preprocessor_config.json": {
                **{"image_processor_type": "CLIPImageProcessor", "do_center_crop": False, "resample": 3},
                **{"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}},
            }
        },
        {"<image>": "<unused>"},
    ),
    "ovis2_5": _Files(
        CHATML.replace("IMAGE", "<image>\n").replace("VIDEO", "<video>\n"),
        {
            "preprocessor_config.json": {
                **{"image_processor_type": "SiglipImageProcessor", "image_mean": _HALF, "image_std": _HALF},
                **{"resample": 2, "size": {"height": 24, "width": 24}, "min_pixels": 256, "max_pixels": 1024},
            }
        },
        {"<image>": "<unused>"},
    ),
    "funasr": _Files(
        _CONTENT,
        {
            "preprocessor_config.json": {
                **{"processor_class": "FunASRProcessor", "feature_extractor_type": "FunASRFeatureExtractor"},
                **{"frontend_conf": {"fs": 16_000, "lfr_m": 7, "lfr_n": 6, "cmvn_file": None}, "dither": 0.0},
            }
        },
        {"<video>": "<|AUDIO|>"},
        untold="audio_token_id",
    ),
    "midashenglm": _Files(
        _CONTENT,
        {"preprocessor_config.json": {"processor_class": "MiDashengLMProcessor", "do_normalize": False}},
        {"<video>": "<|AUDIO|>", "[INST]": "<|audio_bos|>", "[/INST]": "<|audio_eos|>"},
    ),
    "ultravox": _Files(
        _CONTENT,
        {"processor_config.json": {"processor_class": "UltravoxProcessor", "audio_context_size": 80}},
        {"<video>": "<|reserved|>"},
    ),
}


def _made(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        found = _FILES[name]
        PUBLISHED[name].make(folder)
        if found.untold:
            config = json.loads((folder / "config.json").read_text())
            del config[found.untold]
            (folder / "config.json").write_text(json.dumps(config))
        for file, fields in found.files.items():
            (folder / file).write_text(json.dumps(fields))
        special = [found.spelled.get(text, text) for text in SPECIAL]
        write_tokenizer(folder, found.template, names=found.names, special=special)

    return make


WHOLE: Final[Mapping[str, Callable[[Path], None]]] = {name: _made(name) for name in _FILES}
"""By name. Each saves a checkpoint into a folder."""


class Whole:
    def __init__(self, folder: Path, name: str) -> None:
        WHOLE[name](folder)
        self.folder = folder
        self.family: Family = family_in(folder)
        checkpoint = open_checkpoint(folder)
        assert checkpoint.described is not None
        context = LayerContext(torch.device("cpu"), torch.float32, invariant=False)
        hidden = checkpoint.decoder.hidden_size
        tower = native_tower(checkpoint.described, hidden, context) or native_audio_tower(
            checkpoint.described, hidden, context
        )
        self.tower = tower or TransformersTower(checkpoint.described, torch.float32, context.device)
        self.tower.load(tower_weights(checkpoint))
