"""Every architecture's step on a device, of which nothing may make the host wait: no launch would be ahead of it."""

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from stentor.engine.layers.experts import experts
from stentor.engine.layers.forward_batch import MediaBatch, MixerInputs
from stentor.engine.layers.linear import quantized
from stentor.engine.layers.linear.adapters import AdapterPlaces, TableSizes
from stentor.engine.layers.linear.coded import block_kind
from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.model_config.registry import read_config
from stentor.engine.model_config.spec.model import ModelSpec
from stentor.engine.models.decoder import Decoder
from stentor.engine.quantization.formats import (
    Format,
    FP4Format,
    FP8Format,
    GGUFFormat,
    GroupedInt8Format,
    Int4Format,
    Int8Format,
    OnlineFormat,
    QuantizationRule,
    QuantizedCheckpoint,
)
from stentor.engine.worker.caches import allocate_caches
from stentor.engine.worker.compute.async_compute import LogprobReader
from stentor.engine.worker.device.staging import Inputs, Shape, staged_bytes, view_inputs
from stentor.engine.worker.passes.device_step import DeviceStep, RowBuffers
from stentor.engine.worker.rows.states import RowStates, StateDTypes
from stentor.engine.worker.sampling.device_sampler import DeviceSampler, TableWrite
from stentor.engine.worker.sampling.logprobs import Alternatives
from stentor.kernels import WholeSpan
from stentor.kernels.linear_coded.blocks import empty_blocks
from stentor.kernels.linear_gguf import empty_weight as empty_gguf
from stentor.kernels.linear_w4 import empty_weight as empty_w4
from stentor.kernels.sampling.tables import PARAMS
from stentor.tests.engine.worker.fake_device import FakeDevice
from stentor.tests.engine.worker.no_waiting import launching_nothing, no_waiting
from stentor.tests.parity import tiny

pytestmark = pytest.mark.compiles

CUDA, META, BF16 = torch.device("cuda"), torch.device("meta"), torch.bfloat16
LENGTH, BLOCK, SLOTS = 256, 16, 8
PROJECTIONS = r"re:.*proj$"
"""What forms of weights are of: not a router."""

DECODE = Shape(rows=SLOTS, tokens=SLOTS, draws=SLOTS, updates=SLOTS), SLOTS
DRAFTED = Shape(rows=SLOTS, tokens=SLOTS, draws=0)
"""A graph of :mod:`stentor.engine.worker.passes.pass_graphs`: each row has a token, which may be a draft."""
MIXED = Shape(rows=4, tokens=200, draws=4), 3
PROMPTS = Shape(rows=2, tokens=40, draws=2), 0


@pytest.fixture(autouse=True)
def launched() -> Iterator[list[str]]:
    names: list[str] = []
    with launching_nothing(names.append), torch.inference_mode():
        yield names


class _Stage:
    """A model's device step, and its inputs, on the device that holds nothing."""

    def __init__(
        self,
        spec: ModelSpec,
        format: Format | None = None,
        *,
        kv: torch.dtype = BF16,
        media_tokens: int = 0,
        adapter_slots: int = 0,
    ) -> None:
        stored = QuantizedCheckpoint("any", (QuantizationRule((PROJECTIONS,), format),)) if format else None
        if stored is not None and kv != BF16:
            stored = replace(stored, kv_cache_fp8=True)
        self.spec = spec
        self._adapter_slots = adapter_slots
        places = AdapterPlaces(TableSizes(adapter_slots, rank=8)) if adapter_slots else None
        context = LayerContext(CUDA, BF16, False, stored, shapes_only=True, adapters=places)
        self.model = Decoder(spec, context, LENGTH, media_tokens=media_tokens)
        caches = allocate_caches(spec.cache_groups, 64, BLOCK, META, kv)
        self.groups = 1 + max((cache.group for cache in caches), default=0)
        tables = torch.zeros((self.groups, SLOTS + 1, LENGTH // BLOCK), dtype=torch.int32, device=META)
        buffers = RowBuffers(
            tables=tables,
            batch_tables=tables[:, :SLOTS],
            last_token=torch.zeros(SLOTS + 1, dtype=torch.int64, device=META),
            logits=torch.zeros((SLOTS, spec.vocab_size), device=META),
            sampled_token_ids=torch.zeros(SLOTS, dtype=torch.int64, device=META),
        )
        self.sampler = DeviceSampler(spec.vocab_size, SLOTS, META)
        states = None
        if spec.states:
            states = RowStates(spec.states, 2 * SLOTS, SLOTS, StateDTypes(BF16, torch.float32), META)
        self.step = DeviceStep(self.model, caches, buffers, self.sampler, LENGTH, states)
        self.mixed = MixerInputs(None, buffers=[])

    def inputs(self, shape: Shape) -> tuple[Inputs, Shape]:
        rows = shape.rows if self.spec.states else 0
        shape = replace(
            shape,
            groups=self.groups,
            updates=shape.updates * self.groups,
            state_rows=rows,
            adapter_slots=self._adapter_slots,
        )
        return view_inputs(torch.empty(staged_bytes(shape), dtype=torch.uint8, device=META), shape), shape

    def run(self, shape: Shape, decode_rows: int, query_len: int = 1) -> None:
        """``query_len``: most tokens of a decode row; above 1, the host samples."""
        inputs, shape = self.inputs(shape)
        with no_waiting():
            if shape.updates:
                self.step.update_tables(inputs)
            longest = query_len if query_len > 1 else 1 + shape.tokens - shape.rows
            hidden = self.step.forward(
                inputs,
                shape,
                decode_rows=decode_rows,
                max_query_len=longest,
                max_seq_len=LENGTH,
                query_len=query_len,
                mixed=self.mixed if self.spec.states and query_len > 1 else None,
            )
            if query_len > 1:
                self.step.logits(hidden, inputs, shape)
                return
            self.step.logits(hidden.index_select(0, inputs.logits_indices), inputs, shape)
            self.step.draw(inputs, shape.draws)


def _spec(name: str) -> ModelSpec:
    read = read_config(tiny.described(name), {})
    assert isinstance(read, ModelSpec)
    return read


@pytest.mark.parametrize("name", tiny.ARCHITECTURES)
def test_no_architecture_waits_in_a_step(name: str, launched: list[str]) -> None:
    stage = _Stage(_spec(name))
    for shape, decode_rows in (DECODE, MIXED, PROMPTS):
        stage.run(shape, decode_rows)
    assert len(launched) >= 3 * 3 * len(stage.spec.layers)  # its kernels ran, and not their plain forms
    launched.clear()
    stage.run(DRAFTED, SLOTS, query_len=4)
    assert len(launched) >= 3 * len(stage.spec.layers)
    assert len(stage.mixed.found) >= len(stage.spec.states), "each part of a layer with a state records its inputs"


ADAPTED = ("llama", "phi3", "gemma2", "gemma4-small", "gpt-oss", "qwen2-moe", "qwen3-next", "deepseek-v3")


@pytest.mark.parametrize("name", ADAPTED)
def test_no_step_waits_for_the_adapters_of_its_rows(name: str, launched: list[str]) -> None:
    stage = _Stage(_spec(name), adapter_slots=5)
    for shape, decode_rows in (DECODE, MIXED, PROMPTS):
        stage.run(shape, decode_rows)
    downs, ups = (launched.count(f"low_rank_{which}_kernel") for which in ("down", "up"))
    assert downs == ups >= 3 * 2 * len(stage.spec.layers)


FORMATS: dict[str, Format] = {
    "fp8-tensor": FP8Format("tensor", activations="tensor"),
    "fp8-channel": FP8Format("channel", activations="token"),
    "fp8-block": FP8Format("block", activations="group"),
    "int8-channel": Int8Format("channel", activations="token"),
    "int8-grouped": GroupedInt8Format("gptq", 32, symmetric=False),
    "int4-gptq": Int4Format("gptq", 32, symmetric=False),
    "int4-act-order": Int4Format("gptq", 32, symmetric=True, act_order=True),
    "int4-channel": Int4Format("compressed-tensors", 0, symmetric=True, scales="bfloat16"),
    "mxfp4": FP4Format("mxfp4", "compressed-tensors"),
    "nvfp4": FP4Format("nvfp4", "compressed-tensors"),
    "online-fp8": OnlineFormat("fp8"),
    "online-int8": OnlineFormat("int8"),
    **{kind: GGUFFormat(kind) for kind in ("Q4_0", "Q8_0", "Q4_K", "Q6_K", "IQ4_NL")},
}
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 8, "num_key_value_heads": 8}
MIXTURE = {**WIDE, "moe_intermediate_size": 256, "head_dim": 32}


@pytest.fixture
def _weights_without_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are made of what is stored, and have no place before: of the right shapes."""

    def filled(made: type, weight: Callable[[Format, int, int], Any]) -> None:
        original = made.__init__  # type: ignore[misc]

        def init(self: Any, of: Any, formats: Any) -> None:
            original(self, of, formats)
            for part, size in of.outputs.items():
                self._take(part, weight(formats[part] if isinstance(formats, dict) else formats, size, of.inputs))

        monkeypatch.setattr(made, "__init__", init)

    def int4(format: Any, outputs: int, inputs: int) -> Any:
        return empty_w4(outputs, inputs, group=format.group, dtype=getattr(torch, format.scales), device=META)

    def blocks(format: Any, outputs: int, inputs: int) -> Any:
        planes = quantized._planes_of(format)
        if planes is None:
            return empty_blocks(block_kind(format), 1, outputs, inputs, META)
        return empty_gguf(outputs, inputs, planes, META)

    # a GGUF stores experts under other names than those of the spec here
    monkeypatch.setattr(experts, "gather_coded", lambda *_, **__: None)
    filled(quantized.Int4Linear, int4)
    filled(quantized.GGUFLinear, blocks)


@pytest.mark.usefixtures("_weights_without_a_checkpoint")
@pytest.mark.parametrize(
    ("form", "mixture"),
    [(form, False) for form in FORMATS]
    + [(form, True) for form in FORMATS if not isinstance(FORMATS[form], OnlineFormat)],  # experts are not quantised so
)
def test_no_form_of_weights_makes_a_step_wait(form: str, mixture: bool, launched: list[str]) -> None:
    import transformers

    shape = {**tiny.SHAPE, **(MIXTURE if mixture else WIDE)}
    made: Any = transformers.Qwen3MoeConfig if mixture else transformers.LlamaConfig
    more = {"num_experts": 8, "num_experts_per_tok": 2} if mixture else {}
    spec = read_config(json.loads(made(**shape, **more).to_json_string(use_diff=False)), {})
    assert isinstance(spec, ModelSpec)
    stage = _Stage(spec, FORMATS[form])
    for each, decode_rows in (DECODE, MIXED, PROMPTS):
        stage.run(each, decode_rows)
    assert launched


def test_an_eight_bit_cache_makes_no_step_wait() -> None:
    stage = _Stage(_spec("llama"), FORMATS["fp8-channel"], kv=torch.float8_e4m3fn)
    for shape, decode_rows in (DECODE, MIXED, PROMPTS):
        stage.run(shape, decode_rows)


@pytest.mark.parametrize("name", ["gemma3-seeing", "qwen3.5-seeing", "gemma4-seeing", "mistral3-seeing"])
def test_pictures_in_a_prompt_make_no_step_wait(name: str) -> None:
    stage = _Stage(_spec(name), media_tokens=16)
    shape, decode_rows = MIXED
    inputs, shape = stage.inputs(shape)
    media = MediaBatch(
        places=torch.empty(16, dtype=torch.int64, device=META),
        embeddings=torch.empty(16, stage.spec.hidden_size, device=META),
        spans=[WholeSpan(first=20, count=16, sequence=3, start=30)],
    )
    with no_waiting():
        stage.model.place_media(torch.empty(16, 3, dtype=torch.int64, device=META))
        stage.step.forward(inputs, shape, decode_rows=decode_rows, max_query_len=197, max_seq_len=LENGTH, media=media)


def test_nothing_waits_where_rows_enter_or_ask_for_log_probabilities() -> None:
    stage = _Stage(_spec("llama"))
    words = -(-stage.spec.vocab_size // 32)
    writes, at = [], 0
    for table, length in (("mask", words), ("early_mask", words), ("bias", 6), ("seen", 8)):
        writes.append(TableWrite(table, 3, at, at + length))
        at += length
    inputs, _ = stage.inputs(Shape(rows=2, tokens=2, draws=2, logprob_rows=2, entering=2, sampling_data=at))
    assert len(inputs.sampling_params) == 2 * PARAMS
    device = FakeDevice(torch_device=META)
    with no_waiting():
        stage.sampler.enter(inputs.sampling_slots, inputs.sampling_params, inputs.sampling_data, writes)
        logits = torch.empty(2, stage.spec.vocab_size, device=META)
        tokens = torch.empty(2, dtype=torch.int64, device=META)
        reader = LogprobReader(stage.model, device)
        reader._fetch = lambda source, memory: source  # type: ignore[method-assign]  # the step's own copy, and waited for
        memory = SimpleNamespace(bring=lambda ids: torch.empty(ids.shape, dtype=torch.int64, device=META))
        asked = [Alternatives(5, logits=True), Alternatives(0, (1, 2), processed=True)]
        own = stage.sampler.processed(logits, [2, 3], asked, memory)  # type: ignore[arg-type]
        assert own.shape == logits.shape
        assert own is not logits
        reader.read(own, tokens, asked, memory)  # type: ignore[arg-type]


def _of(x: torch.Tensor) -> list[tuple[str, Callable[[], object]]]:
    indices, mask = torch.empty(3, dtype=torch.int64, device=META), torch.empty(4, dtype=torch.bool, device=META)
    return [
        ("item", lambda: x[0, 0].item()),
        ("bool", lambda: bool(mask.any())),
        ("nonzero", lambda: mask.nonzero()),
        ("mask", lambda: x[mask]),
        ("put a mask", lambda: x.index_put((mask,), x[:1])),
        ("masked_select", lambda: x.masked_select(mask[:, None])),
        ("unique", lambda: torch.unique(indices)),
        ("equal", lambda: torch.equal(x, x)),
        ("repeat", lambda: indices.repeat_interleave(indices)),
        ("to the host", lambda: x.cpu()),
        ("from the host", lambda: x.copy_(torch.zeros(4, 4))),
        ("a constant", lambda: torch.tensor([1, 2], device=META)),
        ("host indices", lambda: x[torch.tensor([1, 2])]),
    ]


@pytest.mark.parametrize("what", [name for name, _ in _of(torch.empty(4, 4, device=META))])
def test_what_waits_is_noticed(what: str) -> None:
    x = torch.empty(4, 4, device=META)
    with no_waiting(), pytest.raises((AssertionError, RuntimeError)):
        dict(_of(x))[what]()


def test_what_does_not_wait_is_let_through() -> None:
    x = torch.empty(4, 4, device=META)
    indices, mask = torch.empty(3, dtype=torch.int64, device=META), torch.empty(4, 4, dtype=torch.bool, device=META)
    with no_waiting():
        _ = x[indices], x * 2.0, x[1:], torch.where(mask, x, 0.0), x.masked_fill(mask, 1.0), x.to(BF16)
        x[:, 1] = 3.0
        x.index_copy_(0, indices, x[:3])
        indices.repeat_interleave(2)
