from pathlib import Path

import pytest
import torch

from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.layers.pooling import PostPooling, pool
from stentor.engine.model_config.encoders.sentence import Dense, LayerNormed, Normalized, PoolingMode

HIDDEN = torch.randn(9, 4, generator=torch.Generator().manual_seed(3))
STARTS = torch.tensor([0, 1, 6, 9])
TEXTS = [HIDDEN[0:1], HIDDEN[1:6], HIDDEN[6:9]]


def expected(text: torch.Tensor, mode: PoolingMode) -> torch.Tensor:
    weights = torch.arange(1.0, len(text) + 1).unsqueeze(1)
    made: dict[PoolingMode, torch.Tensor] = {
        "cls": text[0],
        "lasttoken": text[-1],
        "max": text.amax(0),
        "mean": text.mean(0),
        "mean_sqrt_len_tokens": text.sum(0) / len(text) ** 0.5,
        "weightedmean": (text * weights).sum(0) / weights.sum(),
    }
    return made[mode]


@pytest.mark.parametrize("mode", ["cls", "lasttoken", "max", "mean", "mean_sqrt_len_tokens", "weightedmean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_text_is_pooled_by_itself(mode: PoolingMode, dtype: torch.dtype) -> None:
    found = pool(HIDDEN.to(dtype), STARTS, (mode,))
    wanted = torch.stack([expected(text.to(dtype).float(), mode) for text in TEXTS])
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted)


def test_several_modes_stand_one_after_another() -> None:
    found = pool(HIDDEN, STARTS, ("cls", "mean"))
    torch.testing.assert_close(found[:, :4], pool(HIDDEN, STARTS, ("cls",)))
    torch.testing.assert_close(found[:, 4:], pool(HIDDEN, STARTS, ("mean",)))


def test_what_comes_behind_the_pooling_runs_in_order(tmp_path: Path) -> None:
    modules = (Dense(tmp_path, 4, 6, True, "tanh"), LayerNormed(tmp_path, 6), Normalized())
    after = PostPooling(modules, LayerContext(torch.device("cpu"), torch.bfloat16, False))
    generator = torch.Generator().manual_seed(5)
    weight, bias = torch.randn(6, 4, generator=generator), torch.randn(6, generator=generator)
    scale, shift = torch.randn(6, generator=generator), torch.randn(6, generator=generator)
    stored = ({"linear.weight": weight, "linear.bias": bias}, {"norm.weight": scale, "norm.bias": shift})
    assert [module for module, _ in after.weights] == [*modules[:2]]
    for (_, weights), tensors in zip(after.weights, stored, strict=True):
        weights.load(tensors.items())
    vectors = pool(HIDDEN, STARTS, ("mean",))
    wanted = torch.nn.functional.layer_norm(torch.tanh(vectors @ weight.T + bias), (6,), scale, shift)
    torch.testing.assert_close(after(vectors), torch.nn.functional.normalize(wanted, dim=-1))
