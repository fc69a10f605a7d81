"""What is served in combinations: each architecture of text, and models with coded weights, with heads that draft, that
see, and that answer texts."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

import msgspec
import torch

from stentor.engine.client.media import Media
from stentor.protocols.ipc.config import DraftMethod
from stentor.tests.engine.media import Audio
from stentor.tests.engine.quantization import checkpoints as coded
from stentor.tests.engine.quantization.test_checkpoints import (
    EXPANDED_ONLY,
    FP4,
    INT8_GROUPS,
    QUANTISED_INPUTS,
    WEIGHT_ONLY,
)
from stentor.tests.engine.worker.test_draft_heads import METHODS, Stored
from stentor.tests.parity import tiny, translators
from stentor.tests.parity.pictures import prompt_of
from stentor.tests.parity.seeing import KINDS, MAKERS
from stentor.tests.support.vision_models import FAMILIES

Beside = Literal["", "pictures", "text"]
NUM_MEDIA: Final = 4
"""Different pictures, or texts for an encoder."""
_BYTES: Final = 256
"""Tokens of a model that sees below its special ones."""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """How a checkpoint is made, and what may be asked of it."""

    make: Callable[[Path], Any]
    """Saves it; returns transformers' model, or None."""
    folder: str = ""
    """Where the model is in it."""
    head: DraftMethod | None = None
    """Its method. A head that the model does not bring is in ``head``."""
    beside: Beside = ""
    """What requests bring besides tokens."""
    vocab: int = tiny.VOCAB
    words: int = tiny.VOCAB
    """Prompts have tokens below it."""
    longest: int = 96
    """Of a sequence, at most."""
    least_step: int = 1
    """Tokens that a step must have room for: pictures whose tokens attend to each other are computed in one."""


def _coded(make: Callable[[Path], Any]) -> Callable[[Path], Any]:
    def made(folder: Path) -> Any:
        make(folder)
        return coded.tiny_llama()

    return made


def _experts_in_mxfp4(folder: Path) -> Any:
    config = tiny.ARCHITECTURES["gpt-oss"]()
    model = tiny.make_of(config, "gpt-oss", folder)
    coded.mxfp4_experts(model, folder)
    return model


def _translator(kind: str, folder: Path) -> None:
    translators.KINDS[kind]().save_pretrained(folder)


def _headed(method: str, folder: Path) -> Any:
    return Stored(method, folder).head.whole[0]


_EXACT: Final = {**WEIGHT_ONLY, **INT8_GROUPS, **FP4, **QUANTISED_INPUTS, **EXPANDED_ONLY}
_SEEING: Final = (
    "qwen3_vl",
    "qwen3_5",
    "qwen3_vl_moe",
    "gemma3",
    "idefics3",
    "gemma4_small",
    "internvl",
    "llama4",
    "lfm2_vl",
)
_TOGETHER: Final = ("gemma3", "gemma4_small")
_TEXTS: Final = ("t5", "longt5", "bart", "marian", "t5gemma", "t5gemma2", "seamless", "switch")
SOURCES: Final[Mapping[str, Source]] = {
    **{name: Source(make=partial(tiny.make, name)) for name in tiny.ARCHITECTURES},
    **{f"coded {name}": Source(make=_coded(make)) for name, make in _EXACT.items()},
    "coded gpt-oss": Source(make=_experts_in_mxfp4),
    **{
        f"headed {method}": Source(
            make=partial(_headed, method),
            folder="target",
            head="eagle" if method == "eagle" else "eagle3" if method == "eagle3" else "mtp",
        )
        for method in METHODS
    },
    **{
        f"seeing {name}": Source(
            make={**FAMILIES, **MAKERS}[name],
            beside="pictures",
            words=_BYTES,
            least_step=64 if name in _TOGETHER else 1,
        )
        for name in _SEEING
    },
    **{
        f"answering {kind}": Source(
            make=partial(_translator, kind),
            beside="text",
            vocab=translators.VOCAB,
            words=translators.VOCAB,
            longest=64,
        )
        for kind in _TEXTS
    },
}
"""By name."""


class Brought(msgspec.Struct, frozen=True):
    """What an engine gets of a request."""

    tokens: list[int]
    media: list[Media]
    audio: Audio | None = None


def brought(model: str, prompt: list[int], numbers: list[int]) -> Brought:
    """A prompt with pictures of these numbers, one behind each of its first tokens, or with the text of the last."""
    beside = SOURCES[model].beside
    if not beside or not numbers:
        return Brought(prompt, [])
    if beside == "text":
        return Brought(prompt, [], _text(numbers[-1]))
    name = model.removeprefix("seeing ")
    parts: list[Any] = []
    for at, number in enumerate(numbers):
        parts += [prompt[at : at + 1], _picture(name, number)]
    made = prompt_of(KINDS[name], *parts, prompt[len(numbers) :])
    return Brought(made.tokens, made.media)


@cache
def _picture(name: str, number: int) -> Any:
    return KINDS[name].draw(torch.Generator().manual_seed(number), 0)


@cache
def _text(number: int) -> Audio:
    rng = Random(number)
    words = [rng.randrange(4, translators.VOCAB - 1) for _ in range(rng.choice([1, 7, 30, 64]))]
    data = translators.encoded(words)
    return Audio(data, blake2b(data, digest_size=16).digest())
