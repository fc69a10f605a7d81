"""A whole model of real width, dry: every kernel that a step launches compiles for a GPU, and none by the reference."""

from typing import cast

import pytest
import torch
from msgspec.structs import replace
from torch._subclasses.fake_tensor import FakeTensorMode

from stentor.engine.layers import rotary
from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.model_config.spec.latent_attention import IndexSpec, LatentAttentionSpec
from stentor.engine.model_config.spec.model import ModelSpec, with_layers
from stentor.engine.model_config.spec.recurrent import GatedDeltaSpec, Mamba2Spec
from stentor.engine.models import decoder
from stentor.engine.worker.caches import allocate_caches
from stentor.engine.worker.device.graphs import GraphSize
from stentor.engine.worker.device.staging import Shape, staged_bytes, view_inputs
from stentor.engine.worker.passes.device_step import DeviceStep, RowBuffers
from stentor.engine.worker.rows.states import RowStates, StateDTypes
from stentor.engine.worker.sampling.device_sampler import DeviceSampler
from stentor.kernels.launching.dry_run import CompiledKernel, dry_run
from stentor.kernels.tuning import table
from stentor.tests.engine.dense_spec import dense_spec

pytestmark = pytest.mark.compiles

CUDA = torch.device("cuda")
LENGTH = 8192
BLOCK = 32
SLOTS = 64
SHARED_BYTES = 227 * 1024


LLAMA_8B = dense_spec(
    architecture="LlamaForCausalLM",
    vocab_size=128256,
    hidden_size=4096,
    inner=14336,
    layers=1,
    heads=32,
    kv_heads=8,
    head_dim=128,
    max_position=LENGTH,
    norm_eps=1e-5,
)
"""Its shape, of one layer: the others would launch the same."""
QWEN3_32B = dense_spec(
    architecture="Qwen3ForCausalLM",
    vocab_size=151936,
    hidden_size=5120,
    inner=25600,
    layers=1,
    heads=64,
    kv_heads=8,
    head_dim=128,
    max_position=LENGTH,
    norm_eps=1e-6,
    attention={"qk_norm": "head"},
)


DEEPSEEK_V2_LITE = with_layers(
    replace(LLAMA_8B, architecture="DeepseekV2ForCausalLM", hidden_size=2048, vocab_size=102400),
    mixer=LatentAttentionSpec(
        heads=16, kv_lora_rank=512, nope_dim=128, rope_dim=64, v_dim=128, scale=192**-0.5, q_lora_rank=1536
    ),
)
"""A dense layer of its shape, with a latent for queries as its larger relatives have."""
SPARSE = with_layers(
    replace(DEEPSEEK_V2_LITE, architecture="DeepseekV32ForCausalLM"),
    mixer=replace(cast(LatentAttentionSpec, DEEPSEEK_V2_LITE.layers[0].mixer), index=IndexSpec(64, 128, 2048)),
)
"""The same with the index of DeepSeek-V3.2."""

HYBRID = with_layers(LLAMA_8B, beside=Mamba2Spec(heads=128, head_dim=64, groups=8, state_dim=128, width=4))
"""With a state space beside the attention, as Falcon-H1 has."""
DELTA = with_layers(LLAMA_8B, beside=GatedDeltaSpec(k_heads=16, v_heads=32, k_dim=128, v_dim=128, width=4))
"""The same with Qwen3-Next's gated delta rule."""


@pytest.fixture(autouse=True)
def _no_copies_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake tensors cannot be copied to a device that torch was built without, nor on it."""

    def table(_rope: object, dim: int, _limit: int, length: int, device: torch.device) -> tuple[torch.Tensor, ...]:
        return torch.empty(length, dim // 2, device=device), torch.empty(length, dim // 2, device=device)

    monkeypatch.setattr(rotary, "rotary_table", table)
    monkeypatch.setattr(DeviceStep, "logits", lambda step, hidden, *_of_rows: step._model.logits(hidden))


def _run(
    config: ModelSpec, size: GraphSize, cache_dtype: torch.dtype, *, invariant: bool = False
) -> list[CompiledKernel]:
    """What one step launches up to its logits. Fake tensors have no contents: whatever it would read from the device,
    for which it could not be captured, is an error."""
    with FakeTensorMode(), dry_run() as compiled:
        model = decoder.Decoder(config, LayerContext(CUDA, torch.bfloat16, invariant), LENGTH)
        buffers = RowBuffers.make(SLOTS, max(SLOTS, size.rows), LENGTH // BLOCK, config.vocab_size, 999, CUDA)
        caches = allocate_caches(config.cache_groups, 1000, BLOCK, CUDA, cache_dtype)
        sampler = DeviceSampler.__new__(DeviceSampler)
        states = (
            RowStates(config.states, 2 * SLOTS, SLOTS, StateDTypes(torch.bfloat16, torch.float32), CUDA)
            if config.states
            else None
        )
        step = DeviceStep(model, caches, buffers, sampler, LENGTH, states)
        shape = Shape(size.rows, size.tokens, size.draws, state_rows=size.rows if config.states else 0)
        inputs = view_inputs(torch.empty(staged_bytes(shape), dtype=torch.uint8, device=CUDA), shape)
        step.whole(inputs, shape, size)
    return compiled


DECODE = GraphSize(SLOTS)
MIXED = GraphSize(8, 512)


@pytest.mark.parametrize(
    ("config", "cache_dtype", "step"),
    [
        (LLAMA_8B, torch.bfloat16, DECODE),
        (LLAMA_8B, torch.bfloat16, MIXED),
        (QWEN3_32B, torch.float8_e4m3fn, MIXED),
        (DEEPSEEK_V2_LITE, torch.bfloat16, DECODE),
        (DEEPSEEK_V2_LITE, torch.bfloat16, MIXED),
        (SPARSE, torch.bfloat16, DECODE),
        (HYBRID, torch.bfloat16, DECODE),
        (HYBRID, torch.bfloat16, MIXED),
        (DELTA, torch.bfloat16, DECODE),
        (DELTA, torch.bfloat16, MIXED),
    ],
    ids=[
        "llama-decode",
        "llama-mixed",
        "qwen3-fp8-mixed",
        "deepseek-decode",
        "deepseek-mixed",
        "sparse-decode",
        "hybrid-decode",
        "hybrid-mixed",
        "delta-decode",
        "delta-mixed",
    ],
)
def test_every_kernel_of_a_step_compiles(config: ModelSpec, cache_dtype: torch.dtype, step: GraphSize) -> None:
    compiled = _run(config, step, cache_dtype)
    names = [kernel.name for kernel in compiled]
    # at least: norm, rotary and write, attention, norm, activation; what spills is each kernel's own test
    assert len(names) >= 5 * len(config.layers) + 1, names
    assert ("_conv_kernel" in names) == bool(config.states)
    for kernel in compiled:
        assert kernel.shared_bytes <= SHARED_BYTES, (kernel.name, kernel.config)


@pytest.mark.parametrize("step", [DECODE, MIXED], ids=["decode", "mixed"])
def test_a_batch_invariant_step_has_the_same_products_and_attention_for_every_row(step: GraphSize) -> None:
    names = [kernel.name for kernel in _run(QWEN3_32B, step, torch.bfloat16, invariant=True)]
    assert names.count("linear_fixed_kernel") == 5  # queries with keys and values, output, up with gate, down, head
    assert names.count("invariant_kernel") == 1
    assert names.count("rms_norm_kernel") == 5  # of the stream three, of heads two
    assert not {"decode_kernel", "_prefill_kernel", "_rotate_and_write_kernel"} & {*names}


@pytest.mark.parametrize(
    ("rows", "normed", "product"),
    [
        (1, "normed_row_kernel", "linear_gemv_kernel"),
        (2, "normed_skinny_kernel", "skinny_kernel"),
        (64, "normed_skinny_kernel", "skinny_kernel"),
    ],
)
def test_few_rows_take_six_launches_a_layer_where_the_table_has_their_products(
    rows: int, normed: str, product: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stentor.kernels.linear import triton_gemv, triton_skinny  # these late: they import Triton
    from stentor.kernels.linear_normed import tunables

    def entries(*_: object) -> table.Table:
        offered = [*tunables.tunables(), *triton_gemv.tunables(), *triton_skinny.tunables()]
        return {
            operation: {each.key: each.candidates[0].to_json() for each in offered if each.operation == operation}
            for operation in {each.operation for each in offered}
        }

    monkeypatch.setattr(table, "_table", entries)
    table._picked.cache_clear()
    try:
        two = replace(LLAMA_8B, layers=2 * LLAMA_8B.layers)
        names = [kernel.name for kernel in _run(two, GraphSize(rows), torch.bfloat16)]
        more = [kernel.name for kernel in _run(LLAMA_8B, GraphSize(65), torch.bfloat16)]
    finally:
        table._picked.cache_clear()
    # no product has summed the squares of embeddings
    before = [normed] if rows == 1 else ["rms_norm_kernel", product]
    assert names[: len(before) + 1] == ["gather_kernel", *before]
    layer = [normed, "_rotate_and_write_kernel", "decode_kernel", product, normed, product]
    assert names[-8:] == [*layer, "rms_norm_kernel", product]
    assert len(names) == 1 + len(before) - 1 + 2 * len(layer) + 1 + 2  # one plan for all layers
    assert not {normed, product} & {*more}
