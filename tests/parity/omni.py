"""Tiny random models that see, watch and hear with transformers' modules: Nemotron 3 Nano Omni."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
import transformers as untyped_transformers

from stentor.tests.parity.pictures import Kind, Picture, cat
from stentor.tests.parity.sounding import grouped
from stentor.tests.support.vision_models import PATCH, SIZES, TEXT, token

transformers: Any = untyped_transformers
"""Its configs take more than their signatures say."""

_IMAGE: Final = token("<image>")
_SOUND: Final = token("<video>")


def _nemotron() -> Any:
    """With a head for multi-token prediction, of which its tower has a norm."""
    sizes = {name: value for name, value in TEXT.items() if name != "num_hidden_layers"}
    text = {
        **sizes,
        **{"layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"], "mamba_num_heads": 8},
        **{"mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 8, "head_dim": 16, "tie_word_embeddings": False},
        **{"num_nextn_predict_layers": 1, "model_type": "nemotron_h"},
    }
    vision = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "mlp_ratio": 2.0}
    vision |= {"patch_size": PATCH, "max_img_size": 6 * PATCH, "image_size": 16, "num_cls_tokens": 2}
    sound = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    sound |= {"num_mel_bins": 8, "subsampling_conv_channels": 4, "max_position_embeddings": 64}
    return transformers.NemotronH_Omni_Reasoning_V3_Config(
        text_config=text,
        vision_config={"model_type": "radio", **vision, "num_registers": 2, "video_temporal_patch_size": 2},
        audio_config={**sound, "projection_hidden_size": 48, "projection_bias": False},
        vision_hidden_size=32,
        projector_hidden_size=SIZES["intermediate_size"],
        image_token_id=_IMAGE,
        audio_token_id=_SOUND,
        tie_word_embeddings=False,
    )


def _picture_or_sound(random: torch.Generator, size: int) -> Picture:
    if size:
        features, mask = torch.randn(1, 41, 8, generator=random), (torch.arange(41) < 40)[None]
        tensors = {"input_features": features, "input_features_mask": mask}
        return Picture(tensors, [61, *[_SOUND] * 6, 62], modality="audio")
    rows, columns = 4, 6
    pixels = torch.randn(rows * columns, 3 * PATCH * PATCH, generator=random)
    tensors = {"pixel_values": pixels, "image_grid_hw": torch.tensor([[rows, columns]])}
    return Picture(tensors, [token("<img>"), *[_IMAGE] * (rows * columns // 4), token("</img>")])


def _film(random: torch.Generator, size: int) -> Picture:
    """Two or four frames, of which two become one picture, with words between these."""
    pixels = torch.randn(2 + 2 * size, 3, 4 * PATCH, 6 * PATCH, generator=random)
    shown = [60, token("<img>"), *[_IMAGE] * 6, token("</img>")]
    return Picture({"pixel_values_videos": pixels}, shown * (1 + size), modality="video")


def take_videos_apart(model: Any) -> None:
    """Have a Nemotron 3 Nano Omni take videos: its class joins what is one tensor, as if it were a list of some."""
    encode = model.get_video_features

    def encoded(*args: Any, **arguments: Any) -> Any:
        found = encode(*args, **arguments)
        found.pooler_output = list(found.pooler_output)
        return found

    model.get_video_features = encoded


OMNI: Final[Mapping[str, tuple[Callable[[], Any], Kind]]] = {
    "nemotron_omni": (_nemotron, Kind(_picture_or_sound, _IMAGE, grouped, (_SOUND,))),
    "nemotron_omni_film": (_nemotron, Kind(_film, _IMAGE, cat())),
}
"""By name: a configuration, and what it takes."""
