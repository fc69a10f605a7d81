"""A whole model of real width, dry: every kernel that a step launches compiles for a GPU, and none by the reference."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.engine.layers.attention import LayerCache
from stentor.engine.layers.layer_context import LayerContext
from stentor.engine.model_config.decoder_config import DecoderConfig
from stentor.engine.models import decoder
from stentor.engine.worker.device_sampler import DeviceSampler
from stentor.engine.worker.device_step import DeviceStep, RowBuffers
from stentor.engine.worker.staging import Shape, staged_bytes, view_inputs
from stentor.kernels.kv_cache import make_kv_cache
from stentor.tests.kernels.dry_run import CompiledKernel, dry_run

pytestmark = pytest.mark.compiles

CUDA = torch.device("cuda")
LENGTH = 8192
BLOCK = 32
SLOTS = 64
SHARED_BYTES = 227 * 1024


LLAMA_8B = DecoderConfig(
    architecture="LlamaForCausalLM",
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=1,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    max_position=LENGTH,
    rms_eps=1e-5,
)
"""Its shape, of one layer: the others would launch the same."""
QWEN3_32B = DecoderConfig(
    architecture="Qwen3ForCausalLM",
    vocab_size=151936,
    hidden_size=5120,
    intermediate_size=25600,
    num_layers=1,
    num_heads=64,
    num_kv_heads=8,
    head_dim=128,
    max_position=LENGTH,
    rms_eps=1e-6,
    qk_norm="head",
)


@pytest.fixture(autouse=True)
def _tables_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake tensors cannot be copied to a device that torch was built without."""

    def table(_rope: object, dim: int, _limit: int, length: int, device: torch.device) -> tuple[torch.Tensor, ...]:
        return torch.empty(length, dim // 2, device=device), torch.empty(length, dim // 2, device=device)

    monkeypatch.setattr(decoder, "rotary_table", table)


def _caches(config: DecoderConfig, dtype: torch.dtype) -> list[LayerCache]:
    return [
        LayerCache(*make_kv_cache(1000, config.num_kv_heads, config.head_dim, BLOCK, dtype, CUDA))
        for _ in range(config.num_layers)
    ]


def _run(config: DecoderConfig, shape: Shape, cache_dtype: torch.dtype, *, decode_rows: int) -> list[CompiledKernel]:
    """What one step launches up to its logits."""
    with FakeTensorMode(), dry_run() as compiled:
        model = decoder.Decoder(config, LayerContext(CUDA, torch.bfloat16, False), LENGTH)
        buffers = RowBuffers.make(SLOTS, LENGTH // BLOCK, config.vocab_size, 999, CUDA)
        sampler = DeviceSampler.__new__(DeviceSampler)
        step = DeviceStep(model, _caches(config, cache_dtype), buffers, sampler, LENGTH)
        inputs = view_inputs(torch.empty(staged_bytes(shape), dtype=torch.uint8, device=CUDA), shape)
        hidden = step.forward(
            inputs,
            shape,
            decode_rows=decode_rows,
            max_query_len=1 + shape.tokens - shape.rows,
            max_seq_len=LENGTH,
        )
        model.logits(hidden.index_select(0, inputs.logits_indices))
    return compiled


DECODE = (Shape(rows=SLOTS, tokens=SLOTS, draws=SLOTS, updates=SLOTS), SLOTS)
MIXED = (Shape(rows=8, tokens=512, draws=8), 7)


@pytest.mark.parametrize(
    ("config", "cache_dtype", "step"),
    [
        (LLAMA_8B, torch.bfloat16, DECODE),
        (LLAMA_8B, torch.bfloat16, MIXED),
        (QWEN3_32B, torch.float8_e4m3fn, MIXED),
    ],
    ids=["llama-decode", "llama-mixed", "qwen3-fp8-mixed"],
)
def test_every_kernel_of_a_step_compiles(
    config: DecoderConfig, cache_dtype: torch.dtype, step: tuple[Shape, int]
) -> None:
    shape, decode_rows = step
    compiled = _run(config, shape, cache_dtype, decode_rows=decode_rows)
    names = [kernel.name for kernel in compiled]
    # at least: norm, rotary and write, attention, norm, activation; what spills is each kernel's own test
    assert len(names) >= 5 * config.num_layers + 1, names
    for kernel in compiled:
        assert kernel.shared_bytes <= SHARED_BYTES, (kernel.name, kernel.config)
