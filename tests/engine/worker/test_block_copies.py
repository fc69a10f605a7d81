import pytest
import torch

from stentor.engine.layers.forward_batch import LayerCache
from stentor.engine.worker.caches import BlockCopier, cache_tensors
from stentor.kernels.kv_cache import make_kv_cache


@pytest.mark.parametrize("keys_transposed", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_blocks_are_copied_in_every_tensor_once_and_in_order(dtype: torch.dtype, keys_transposed: bool) -> None:
    made = [make_kv_cache(6, 2, 8, 16, torch.float32, "cpu", keys_transposed=keys_transposed) for _ in range(2)]
    tensors = [[tensor.copy_(torch.randn(tensor.shape)).to(dtype) for tensor in pair] for pair in made]
    # two groups of layers share tensors
    caches = [LayerCache((k, v), group) for group in range(2) for k, v in tensors]
    before = [[tensor.float().clone() for tensor in pair] for pair in tensors]
    BlockCopier(cache_tensors(caches)).copy_([(1, 3), (3, 5), (0, 1)])
    for pair, old in zip(tensors, before, strict=True):
        for tensor, was in zip(pair, old, strict=True):
            assert torch.equal(tensor.float(), was[[0, 0, 2, 1, 4, 1]])


@pytest.mark.parametrize("keys_transposed", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_blocks_go_to_host_memory_and_come_back_as_they_were(dtype: torch.dtype, keys_transposed: bool) -> None:
    made = make_kv_cache(4, 2, 8, 16, torch.float32, "cpu", keys_transposed=keys_transposed)
    k, v = (tensor.copy_(torch.randn(tensor.shape)).to(dtype) for tensor in made)
    scales = torch.randn(4, 2, 16)
    before = [tensor.float().clone() for tensor in (k, v, scales)]
    host = torch.zeros(3, k[0].nbytes + v[0].nbytes + scales[0].nbytes, dtype=torch.uint8)
    copier = BlockCopier([k, v, scales], host)
    copier.copy_([(2, -3), (1, 2), (-3, 0), (2, -1), (-1, 3)])
    for tensor, was in zip((k, v, scales), before, strict=True):
        assert torch.equal(tensor.float(), was[[2, 1, 1, 1]])
    assert not host[1].any(), "a place that nobody named"


def test_without_caches_there_is_nothing_to_copy() -> None:
    BlockCopier([]).copy_([])
