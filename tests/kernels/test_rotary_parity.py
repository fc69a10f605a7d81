"""Every way of turning a head against the model that brought it into transformers."""

from typing import Any

import pytest
import torch
import transformers as untyped_transformers

from stentor.kernels import rotary_
from stentor.kernels.rotary import choose
from stentor.tests.kernels.heads import projection, rotary_table
from stentor.tests.kernels.helpers import assert_close

transformers: Any = untyped_transformers
models: Any = transformers.models


def test_interleaved_pairs_turn_as_in_gptj() -> None:
    cos, sin = rotary_table(50, 16)
    q, k, _ = projection(7, 3, 3, 32, seed=1, dtype=torch.float32)
    positions = torch.tensor([0, 49, 3, 3, 12, 30, 1])
    turn = models.gptj.modeling_gptj.apply_rotary_pos_emb
    expected = [turn(heads[None], sin[positions][None], cos[positions][None])[0] for heads in (q, k)]
    assert choose(q) == "native"
    rotary_(q, k, cos, sin, positions, interleaved=True)
    assert_close(q, expected[0])
    assert_close(k, expected[1])


@pytest.mark.parametrize("dim", [32, 64])
def test_part_of_a_head_turns_interleaved_as_in_glm(dim: int) -> None:
    cos, sin = rotary_table(50, 16)
    q, k, _ = projection(5, 4, 2, dim, seed=1, dtype=torch.float32)
    positions = torch.tensor([49, 0, 7, 8, 30])
    doubled = [torch.cat([table[positions]] * 2, dim=-1)[None] for table in (cos, sin)]
    expected = models.glm.modeling_glm.apply_rotary_pos_emb(q[None], k[None], *doubled, unsqueeze_dim=2)
    rotary_(q, k, cos, sin, positions, interleaved=True)
    assert_close(q, expected[0][0])
    assert_close(k, expected[1][0])


def test_sections_turn_as_in_qwen2_vl() -> None:
    module = models.qwen2_vl.modeling_qwen2_vl
    config = transformers.Qwen2VLTextConfig(
        hidden_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]},
    )
    positions = torch.randint(50, (3, 9), generator=torch.Generator().manual_seed(1))
    q, k, _ = projection(9, 4, 2, 32, seed=1, dtype=torch.float32)
    c, s = module.Qwen2VLRotaryEmbedding(config)(q, positions[:, None])
    expected = module.apply_rotary_pos_emb(q[None], k[None], c, s, unsqueeze_dim=2)
    rotary_(q, k, *rotary_table(50, 16), positions, sections=(4, 6, 6))
    assert_close(q, expected[0][0], 1e-5)  # its angles are products in float32
    assert_close(k, expected[1][0], 1e-5)
