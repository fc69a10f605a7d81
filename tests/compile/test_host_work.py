"""What the host does for a step that no graph holds, over a CUDA driver that runs nothing.

Tensors lie in host memory and are taken for a GPU's; kernels are compiled and started, and arrive at the driver.
Torch's products are only allocated: their host work is torch's.
"""

import gc
import importlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

import pytest
import torch

from stentor import kernels
from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.models.decoder import Decoder
from stentor.engine.worker.caches import allocate_caches
from stentor.engine.worker.device.graphs import GraphCapture, GraphSize
from stentor.engine.worker.device.staging import Shape, staged_bytes, view_inputs
from stentor.engine.worker.passes.device_step import DeviceStep, RowBuffers
from stentor.engine.worker.passes.model_pass import ModelPass
from stentor.engine.worker.passes.pass_graphs import PassGraphs
from stentor.engine.worker.rows.rows import RowTable
from stentor.engine.worker.sampling.device_sampler import DeviceSampler
from stentor.kernels.kv_cache import make_kv_cache
from stentor.kernels.launching import compiled
from stentor.kernels.launching.repeated import LaunchCache
from stentor.kernels.quantize import ActivationScheme
from stentor.kernels.quantize.scheme import FP8
from stentor.kernels.rotate_and_write import rotate_and_write_kv_
from stentor.kernels.tuning import Config, overridden
from stentor.kernels.variants import force_variant
from stentor.protocols.ipc.sampling import SamplingParams
from stentor.protocols.ipc.steps import NewRow, RowStep
from stentor.tests.engine.dense_spec import dense_spec
from stentor.tests.engine.worker.fake_device import FakeDevice, FakeGraph
from stentor.tests.kernels.cuda_stub import CudaStub, stubbed_cuda

pytestmark = pytest.mark.compiles

CPU, BF16 = torch.device("cpu"), torch.bfloat16
LAYERS, ROWS, PROMPT, LENGTH, BLOCK = 32, 8, 56, 8192, 64
LONGEST = 300
CALLS_OF_LAUNCH = 30
"""Of an operation that is called again, for each kernel that it starts."""
CALLS_OF_REPLAY = 300
"""Of a pass of 8 rows that is a graph: padding, one copy, one replay."""
LOOK_UPS = 6_000
"""What a step may take as long as: tensors that are allocated, and looked up by their layout."""


@pytest.fixture(scope="module")
def stub() -> Iterator[CudaStub]:
    with pytest.MonkeyPatch.context() as patched, stubbed_cuda() as found:
        patched.setattr(torch.Tensor, "is_cuda", True, raising=False)
        linear = importlib.import_module("stentor.kernels.linear")
        patched.setattr(linear, "_PRODUCTS", LaunchCache())
        patched.setattr(linear.reference, "linear", lambda x, weight, _: x.new_empty((x.shape[0], weight.shape[0])))
        with torch.inference_mode():
            yield found


@pytest.fixture(scope="module")
def device_step(stub: CudaStub) -> DeviceStep:
    """Of a model of Llama-3.1-8B's form. Its sizes are small, so that tensors lie in memory that is used again."""
    spec = dense_spec(
        vocab_size=256,
        hidden_size=256,
        inner=256,
        layers=LAYERS,
        heads=8,
        kv_heads=2,
        head_dim=16,
        max_position=LENGTH,
        norm_eps=1e-5,
    )
    model = Decoder(spec, LayerContext(CPU, BF16, False), LENGTH)
    caches = allocate_caches(spec.cache_groups, 20, BLOCK, CPU, BF16)
    buffers = RowBuffers.make(ROWS + 1, ROWS + 1, LENGTH // BLOCK, spec.vocab_size, 19, CPU)
    return DeviceStep(model, caches, buffers, DeviceSampler.__new__(DeviceSampler), LENGTH)


class Step(NamedTuple):
    prompt: int
    """Tokens of a prompt beside the decode rows."""
    launches: int
    """Of a layer: norm, rotation, attention of decode rows and of prompts, norm, activation."""
    calls: int
    """Of a layer, into Python and into C: no more than these."""


STEPS = {"decode": Step(0, launches=5, calls=158), "mixed": Step(PROMPT, launches=6, calls=165)}


def prepared(step: Step, device_step: DeviceStep) -> Callable[[int], None]:
    """Runs a step whose longest sequence has so many tokens."""
    prompt = step.prompt
    rows = ROWS + (prompt > 0)
    shape = Shape(rows=rows, tokens=ROWS + prompt, draws=rows)
    inputs = view_inputs(torch.zeros(staged_bytes(shape), dtype=torch.uint8), shape)

    def run(longest: int) -> None:
        device_step.forward(inputs, shape, decode_rows=ROWS, max_query_len=max(1, prompt), max_seq_len=longest)

    run(LONGEST)  # compiles
    return run


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_layer_of_a_step_costs_few_calls(step: Step, device_step: DeviceStep, stub: CudaStub) -> None:
    run = prepared(step, device_step)
    before = stub.launches
    calls = calls_of(lambda: run(LONGEST + 1))
    assert stub.launches - before == step.launches * LAYERS + 2  # embeddings, plan
    assert calls <= step.calls * LAYERS


def test_a_pass_over_rows_with_drafts_costs_as_few_calls_as_its_copy_where_it_is_a_graph(
    device_step: DeviceStep, stub: CudaStub
) -> None:
    model, caches, columns = device_step._model, device_step._caches, LENGTH // BLOCK
    table = RowTable(ROWS, LENGTH, BLOCK)
    for slot in range(ROWS):
        table.add(NewRow(slot, [1] * LONGEST, LONGEST, SamplingParams(max_tokens=1), 0, list(range(columns))))
    steps = [[RowStep(slot, 200 + at, 3, [], True, 2) for slot in range(ROWS)] for at in range(2)]
    graphs = PassGraphs(model, caches, table, Unreplayed(), GraphCapture([GraphSize(32, query_len=4)]), LENGTH)
    while graphs.advance(busy=False) is not None:
        pass
    calls, launches = [], []
    for each in (None, graphs):
        passes = ModelPass(model, caches, table, CPU, each)
        passes._decodes_first = True
        passes.run(steps[0])  # compiles, and sends the tables
        before = stub.launches
        calls.append(calls_of(partial(passes.run, steps[1])))
        launches.append(stub.launches - before)
    assert launches[0] >= 5 * LAYERS
    assert launches[1] == 0, "a replay starts them"
    assert calls[1] <= CALLS_OF_REPLAY
    assert calls[0] > 15 * calls[1]


class Unreplayed(FakeDevice):
    """Its graphs do nothing."""

    def capture(self, body: Callable[[], None]) -> FakeGraph:
        return super().capture(lambda: None)


def calls_of(work: Callable[[], object]) -> int:
    calls = 0

    def count(_frame: FrameType, event: str, _what: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    work()
    sys.setprofile(None)
    return calls


@pytest.mark.proof
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_step_takes_little_of_the_hosts_time(step: Step, device_step: DeviceStep) -> None:
    """Beside that of a loop, for processors differ."""
    run = prepared(step, device_step)
    x, known = torch.zeros(ROWS, 256, dtype=BF16), dict[Any, int]()

    def look_up() -> None:
        for _ in range(LOOK_UPS // 10):
            known.get((x.shape, x.stride(), x.dtype))
            torch.empty_like(x)

    def seconds(work: Callable[[], None]) -> float:
        began = time.process_time()
        work()
        return time.process_time() - began

    gc.disable()
    try:
        taken = [(seconds(lambda: run(LONGEST)), seconds(look_up)) for _ in range(60)]
    finally:
        gc.enable()
    of_steps, of_look_ups = zip(*taken, strict=True)
    assert min(of_steps) <= min(of_look_ups) * 10


class _Tensors:
    """What operations take, of another run of memory each time."""

    def __init__(self, *, tokens: int = 4, at: int = 0) -> None:
        """``at``: bytes from a round address to that of the first."""

        def make(*shape: int) -> torch.Tensor:
            whole = torch.zeros(int(torch.Size(shape).numel()) + 64, dtype=BF16)
            return whole[at // 2 :][: torch.Size(shape).numel()].view(shape)

        self.x, self.residual, self.gate_up, self.weight = (
            make(tokens, 64),
            make(tokens, 64),
            make(tokens, 96),
            make(64),
        )
        self.q, self.k, self.v = make(tokens, 96).view(tokens, 6, 16).split_with_sizes((4, 1, 1), dim=1)
        self.cos, self.sin = torch.zeros(32, 8), torch.zeros(32, 8)
        self.places = torch.zeros(tokens, dtype=torch.int64)
        self.scale = torch.ones(1)
        self.k_cache, self.v_cache = make_kv_cache(8, 1, 16, 16, BF16, CPU, keys_transposed=False)
        self.batch = kernels.AttentionBatch(
            query_start=torch.arange(tokens + 1, dtype=torch.int32),
            seq_lens=torch.ones(tokens, dtype=torch.int32),
            block_tables=torch.zeros(tokens, 2, dtype=torch.int32),
            slots=self.places,
            max_query_len=1,
            max_seq_len=30,
            decode_rows=tokens,
        )
        prompt = tokens - tokens // 2  # after decode rows
        self.mixed = kernels.AttentionBatch(
            query_start=torch.tensor([*range(tokens // 2 + 1), tokens], dtype=torch.int32),
            seq_lens=torch.tensor([1] * (tokens // 2) + [prompt], dtype=torch.int32),
            block_tables=torch.zeros(tokens // 2 + 1, 2, dtype=torch.int32),
            slots=self.places,
            max_query_len=prompt,
            max_seq_len=30,
            decode_rows=tokens // 2,
        )
        self.square, self.squares = make(64, 64), torch.ones(2, tokens)
        self.latent_q, self.latents = make(tokens, 4, 24), make(8, 16, 24)
        self.logits = torch.zeros(tokens, 8)
        self.routing = kernels.Routing(self.batch.block_tables, torch.zeros(tokens, 2))
        self.experts_in, self.experts_out = make(8, 32, 64), make(8, 64, 16)
        self.codes, self.coded_weight = make(tokens, 32).view(FP8), make(32, 32).view(FP8)  # two to a number of 16 bits
        self.token_scales, self.weight_scales = torch.ones(tokens, 1), torch.ones(32)


def _experts(t: _Tensors) -> torch.Tensor:
    return kernels.experts_mlp(t.x, t.routing, t.experts_in, t.experts_out, "silu")


def _few(t: _Tensors) -> torch.Tensor:
    variant: kernels.Choice = "triton" if len(t.x) > 1 else "auto"
    kernels.add_linear_(t.x, t.square, t.residual, variant=variant)
    given = t.residual, t.weight, t.square, 1e-5
    return kernels.normed_linear(*given, squares=t.squares, kind="silu", variant=variant).product


ROUTER = kernels.Router(2)
BY_TOKEN, BY_TENSOR = (ActivationScheme(FP8, by) for by in ("token", "tensor"))
OPERATIONS: dict[str, Callable[[_Tensors], object]] = {
    "norm": lambda t: kernels.rms_norm(t.x, t.weight, 1e-5),
    "sum and norm": lambda t: kernels.add_rms_norm(t.x, t.residual, t.weight, 1e-5),
    "products of few rows with sum, norm and gate": _few,
    "activation": lambda t: kernels.gated_activation(t.gate_up, "silu"),
    "rotation": lambda t: rotate_and_write_kv_(
        t.q, t.k, t.v, t.cos, t.sin, t.places, t.k_cache, t.v_cache, t.places, k_norm=t.weight[:16], eps=1e-5
    ),
    "attention": lambda t: kernels.paged_attention(t.q, t.k_cache, t.v_cache, t.batch, scale=0.5),
    "attention beside a prompt": lambda t: kernels.paged_attention(t.q, t.k_cache, t.v_cache, t.mixed, scale=0.5),
    "attention of few tokens to many keys": lambda t: kernels.paged_attention(
        t.q, t.k_cache, t.v_cache, replace(t.mixed, max_seq_len=4000), scale=0.5
    ),
    "quantised norm": lambda t: kernels.rms_norm_quantized(t.x, t.weight, 1e-5, BY_TENSOR, t.scale),
    "sum and quantised norm": lambda t: kernels.add_rms_norm_quantized(t.x, t.residual, t.weight, 1e-5, BY_TOKEN),
    "quantised activation": lambda t: kernels.gated_activation_quantized(t.gate_up, "silu", BY_TOKEN),
    "quantising": lambda t: kernels.quantize(t.x, BY_TOKEN),
    "latents": lambda t: kernels.latent_attention(t.latent_q, t.latents, t.batch, rank=16, scale=0.5),
    "routing": lambda t: kernels.route(t.logits, ROUTER),
    "experts": _experts,
    "product of fp8": lambda t: kernels.linear_fp8(
        kernels.Quantized(t.codes, t.token_scales), t.coded_weight, t.weight_scales, out_dtype=BF16
    ),
    "product of int8": lambda t: kernels.linear_int8(
        t.x, t.coded_weight.view(torch.int8), t.weight_scales, t.weight[:32]
    ),
}


@pytest.mark.parametrize("tokens", [5, 13])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_that_is_called_again_costs_few_calls(name: str, tokens: int, stub: CudaStub) -> None:
    tensors, operation = _Tensors(tokens=tokens), OPERATIONS[name]
    for _ in range(2):
        operation(tensors)
    before = stub.launches
    calls = calls_of(lambda: operation(tensors))
    assert calls <= CALLS_OF_LAUNCH * (stub.launches - before)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.usefixtures("stub")
def test_a_repeated_launch_is_the_one_that_a_first_call_makes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operation, memory = OPERATIONS[name], torch.zeros(1 << 16, dtype=torch.uint8)
    started: list[tuple[Any, ...]] = []

    def made(shape: Sequence[int] | int, dtype: torch.dtype, **_: Any) -> torch.Tensor:
        shape = torch.Size((shape,) if isinstance(shape, int) else shape)
        return memory[: shape.numel() * dtype.itemsize].view(dtype).view(shape)

    monkeypatch.setattr(torch, "empty", made)
    monkeypatch.setattr(torch, "empty_like", lambda x, **_: made(x.shape, x.dtype))
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda x, shape, dtype=None: made(shape, dtype or x.dtype))
    monkeypatch.setattr(importlib.import_module("stentor.kernels.launching.launch"), "_launchers", {})
    monkeypatch.setattr(compiled, "starter", lambda _: lambda *given: started.append((*given[:4], *given[4])))
    for tokens in (4, 1, 4):
        operation(_Tensors(tokens=tokens))
    for at in (0, 2, 0):
        tensors = _Tensors(at=at)
        operation(tensors)
        with overridden("another operation", Config.of()):  # nothing that is kept is found
            operation(tensors)
        started.clear()
        operation(tensors)
        with overridden("another operation", Config.of()):
            operation(tensors)
        assert started
        assert started[: len(started) // 2] == started[len(started) // 2 :]


def test_a_call_that_does_not_fit_is_refused_after_one_that_did(stub: CudaStub) -> None:
    tensors = _Tensors()
    for _ in range(2):
        kernels.add_rms_norm(tensors.x, tensors.residual, tensors.weight, 1e-5)
    with pytest.raises(ValueError, match=r"add_rms_norm: x .* does not fit residual"):
        kernels.add_rms_norm(tensors.x, tensors.residual[:3], tensors.weight, 1e-5)
    with pytest.raises(ValueError, match="add_rms_norm: the last dim of x, weight and bias must be contiguous"):
        kernels.add_rms_norm(tensors.x.T.contiguous().T, tensors.residual, tensors.weight, 1e-5)
    with pytest.raises(ValueError, match="paged_attention: scale must be positive"):
        kernels.paged_attention(tensors.q, tensors.k_cache, tensors.v_cache, tensors.batch, scale=0.0)


def test_a_variant_that_is_forced_runs_where_another_was_kept(stub: CudaStub) -> None:
    tensors = _Tensors()
    for _ in range(2):
        kernels.rms_norm(tensors.x, tensors.weight, 1e-5)
    before = stub.launches
    with force_variant("reference"):
        kernels.rms_norm(tensors.x, tensors.weight, 1e-5)
    assert stub.launches == before
