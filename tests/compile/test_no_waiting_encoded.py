"""The step of every encoder-decoder on a device: nothing in it may make the host wait."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import pytest
import torch
from torch.overrides import TorchFunctionMode

from stentor import kernels
from stentor.engine.layers.forward_batch import Encoded, ForwardBatch
from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.model_config.registry import read_config
from stentor.engine.model_config.spec.seq2seq import ENCODER_BLOCK, Seq2SeqConfig
from stentor.engine.models.encoder_decoder import EncoderDecoder
from stentor.engine.worker.caches import allocate_caches
from stentor.tests.engine.worker.no_waiting import WaitError, launching_nothing, no_waiting
from stentor.tests.parity import pictured, transcribers, translators, whispers

pytestmark = pytest.mark.compiles

CUDA, META, BF16 = torch.device("cuda"), torch.device("meta"), torch.bfloat16
BLOCK, WIDTH, INPUTS = 16, 4, 4
"""Tokens of a block, blocks of a row, and inputs that are encoded."""
MODELS: Final[dict[str, Callable[[], Any]]] = {
    **translators.KINDS,
    **pictured.KINDS,
    "whisper": whispers.tiny,
    "moonshine": transcribers.tiny,
    "moonshine, streaming": transcribers.tiny_streaming,
    "canary": transcribers.tiny_canary,
    "cohere": transcribers.tiny_cohere,
    "speech2text": transcribers.tiny_speech2text,
    "seamless, of speech": transcribers.tiny_seamless,
}


class _Made(TorchFunctionMode):
    """What is made on the GPU, or moved there, lies on the device that stands for it."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        placed = {
            name: META if isinstance(value, torch.device) and value == CUDA else value
            for name, value in (kwargs or {}).items()
        }
        return func(*(META if isinstance(value, torch.device) and value == CUDA else value for value in args), **placed)


@pytest.fixture(autouse=True)
def launched() -> Iterator[list[str]]:
    names: list[str] = []
    with launching_nothing(names.append), torch.inference_mode(), _Made():
        yield names


def _on_device(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device=META)


def _attention(rows: int, tokens: int, width: int, longest: int) -> kernels.AttentionBatch:
    return kernels.AttentionBatch(
        query_start=_on_device(rows + 1),
        seq_lens=_on_device(rows),
        block_tables=_on_device(rows, width),
        slots=_on_device(tokens, dtype=torch.int64),
        max_query_len=1 + tokens - rows,
        max_seq_len=longest,
        decode_rows=rows - (tokens > rows),
    )


def model_of(kind: str) -> EncoderDecoder:
    made = MODELS[kind]()
    described = {**json.loads(made.config.to_json_string(use_diff=False)), "architectures": [type(made).__name__]}
    config = read_config(described, {})
    assert isinstance(config, Seq2SeqConfig)
    return EncoderDecoder(config, LayerContext(CUDA, BF16, False, shapes_only=True))


STEP_WAITS: Final = ("t5gemma2", "t5gemma2, odd")
"""No kernel of a GPU gives the sums by which their attention to two caches is joined."""
ENCODER_WAITS: Final = ("formulas",)
"""transformers' modules number places on the host, in every layer."""


def _expected(waits: bool) -> AbstractContextManager[object]:
    return pytest.raises((WaitError, NotImplementedError)) if waits else nullcontext()


@pytest.mark.parametrize("kind", MODELS)
def test_no_encoder_decoder_waits_in_a_step(kind: str, launched: list[str]) -> None:
    model = model_of(kind)
    config = model.config
    caches = allocate_caches(config.cache_groups, 64, BLOCK, META, BF16)
    crossed = allocate_caches([config.cross_group], INPUTS * config.slot_blocks, ENCODER_BLOCK, META, BF16)
    for rows, tokens in ((8, 8), (4, 40)):
        batch = ForwardBatch(
            _on_device(tokens, dtype=torch.int64),
            _on_device(tokens, dtype=torch.int64),
            caches,
            [_attention(rows, tokens, WIDTH, BLOCK * WIDTH)],
            encoded=Encoded(_attention(tokens, tokens, config.slot_blocks, config.source_positions), crossed),
        )
        with no_waiting(), _expected(kind in STEP_WAITS):
            hidden = model.forward(batch)
            logits = model.logits(hidden.index_select(0, _on_device(rows, dtype=torch.int64)))
            assert logits.shape == (rows, config.vocab_size)
    assert kind in STEP_WAITS or len(launched) >= 2 * 2 * config.num_layers


def _window(kind: str) -> bytes:
    if kind in translators.KINDS:
        return translators.encoded(range(5, 50))
    if kind in pictured.KINDS:
        return pictured.window(kind, pictured.picture(kind, 0), (5, 6, 7))
    return bytes(2 * 16000)


@pytest.mark.parametrize("kind", MODELS)
def test_no_encoder_waits_but_for_its_inputs(kind: str, launched: list[str]) -> None:
    model = model_of(kind)
    config = model.config
    crossed = allocate_caches([config.cross_group], INPUTS * config.slot_blocks, ENCODER_BLOCK, META, BF16)
    with no_waiting(takes_inputs=True), _expected(kind in ENCODER_WAITS):
        model.write_encodings([_window(kind)] * 2, [2, 0], crossed)
    assert launched or kind in ENCODER_WAITS
