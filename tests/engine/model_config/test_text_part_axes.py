"""By which axes the pairs of a text part turn that takes pictures."""

import pytest

from stentor.engine.model_config.config_fields import ConfigError
from stentor.engine.model_config.hf.config import model_spec_from_hf
from stentor.engine.model_config.towers.media_spec import MediaSpec, media_spec
from stentor.tests.parity import tiny


def test_old_files_of_qwen2_vl_say_all_of_the_text_at_their_top_and_sections_of_its_pairs() -> None:
    shape = {**tiny.SHAPE, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}
    found = model_spec_from_hf({**shape, "architectures": ["Qwen2VLForConditionalGeneration"], "vision_config": {}})
    rope = found.layers[0].attention.rope
    assert rope is not None
    assert (rope.kind, rope.axes) == ("default", (0, 0, 1, 1, 1, 2, 2, 2))
    assert found.layers[0].attention.qkv_bias
    with pytest.raises(ConfigError, match=r"mrope_section is \[2, 3, 2\], expected 8 rotating pairs in all"):
        model_spec_from_hf(
            {**shape, "model_type": "qwen2_vl", "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 2]}}
        )


def test_pairs_of_qwen3_vl_turn_by_frame_row_and_column_in_turn() -> None:
    text = {**tiny.SHAPE, "head_dim": 16, "model_type": "qwen3_vl_text"}
    text |= {"rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True}}
    found = model_spec_from_hf({"model_type": "qwen3_vl", "text_config": text})
    rope = found.layers[0].attention.rope
    assert rope is not None
    assert rope.axes == (0, 1, 2, 0, 1, 2, 0, 0)


@pytest.mark.parametrize(
    ("sections", "interleaved", "axes"),
    [
        ([2, 3, 3], True, (0, 1, 2, 1, 2, 1, 2, 0)),
        ([4, 2, 2], True, (0, 1, 2, 0, 1, 2, 0, 0)),
        ([8, 0, 0], True, (0,) * 8),
        ([2, 3, 3], False, (0, 0, 1, 1, 1, 2, 2, 2)),
    ],
)
def test_pairs_of_openpangu_are_spread_over_a_head(
    sections: list[int], interleaved: bool, axes: tuple[int, ...]
) -> None:
    told = {"type": "mrope", "mrope_section": sections, "mrope_interleaved": interleaved}
    shape = {**tiny.SHAPE, "head_dim": 16, "rope_scaling": told, "vision_config": {}}
    rope = model_spec_from_hf({**shape, "model_type": "openpangu_vl"}).layers[0].attention.rope
    assert rope is not None
    assert rope.axes == axes
    media = media_spec({"model_type": "openpangu_vl", "video_token_id": 9})
    assert media == MediaSpec({"image": 46_005}), "videos are not taken, and files may leave out the placeholder"


def test_a_head_of_openpangu_ends_with_a_pair_that_turns_by_frame() -> None:
    told = {"type": "mrope", "mrope_section": [0, 4, 4], "mrope_interleaved": True}
    shape = {**tiny.SHAPE, "head_dim": 16, "rope_scaling": told, "vision_config": {}}
    with pytest.raises(ConfigError, match="mrope_section has no pair that turns by frame"):
        model_spec_from_hf({**shape, "model_type": "openpangu_vl"})
