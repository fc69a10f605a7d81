"""What the families share: how a checkpoint is loaded, what noise a sentence has, how it is stopped."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers.utils.logging import set_verbosity_error

from ..backend import CannotSpeak, Stop, Stopped

SEED: Final = 0
"""Seed of every sentence's noise: equal text gives equal samples."""
MOST_SECONDS: Final = 60.0
"""Of one sentence. A model ends its sentences itself; beyond this it repeats itself."""
_LEAST_SECONDS: Final = 4.0
_CHARS_A_SECOND: Final = 5.0
"""Speech takes a third of it."""


@contextmanager
def loading(folder: Path, threads: int) -> Iterator[None]:
    """Within it a checkpoint is loaded. Raises :class:`CannotSpeak` for each error of the library."""
    set_verbosity_error()  # it warns of every argument that it does not use, and quotes text
    torch.set_num_threads(threads)
    try:
        yield
    except CannotSpeak:
        raise
    except Exception as error:  # the library raises errors of many types for broken files
        raise CannotSpeak(f"{folder} cannot be loaded: {' '.join(str(error).split())}") from error


def pretrained(kind: Any, folder: Path, **more: Any) -> Any:
    """A model of a class of transformers, in float32, to be called within :func:`loading`."""
    named = {"local_files_only": True, "use_safetensors": True, "dtype": torch.float32} | more
    return kind.from_pretrained(folder, **named).eval()


def only_tensor(file: Path, what: str) -> Any:
    """The only tensor of a safetensors file, which is ``what``. Raises :class:`CannotSpeak`."""
    try:
        tensors = [*load_file(file).values()]
    except (OSError, SafetensorError) as error:
        raise CannotSpeak(f"{file} cannot be read: {' '.join(str(error).split())}") from error
    if len(tensors) != 1:
        raise CannotSpeak(f"{file} holds {len(tensors)} tensors, where one with {what} is expected")
    return tensors[0]


@contextmanager
def drawing() -> Iterator[None]:
    """Within it a sentence is made: without gradients, with the noise of :data:`SEED`."""
    with torch.inference_mode(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        yield


def longest_seconds(text: str) -> float:
    """How long the speech of a sentence may be."""
    return min(MOST_SECONDS, _LEAST_SECONDS + len(text) / _CHARS_A_SECOND)


class Interruption:
    """Ends a forward pass between two modules of a model, once :attr:`stop` is set, by :class:`Stopped`."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.stop = Stop()
        for module in model.modules():
            module.register_forward_pre_hook(self._look)

    def _look(self, _module: torch.nn.Module, _inputs: object) -> None:
        if self.stop.is_set:
            raise Stopped


def without_special(text: str, tokenizer: Any) -> str:
    """``text`` without the tokenizer's special tokens: a client does not write places of audio."""
    added = (str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
    for token in {*tokenizer.all_special_tokens, *added}:
        text = text.replace(token, " ")
    return text
