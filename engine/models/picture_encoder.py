"""The encoder of an encoder-decoder that sees: a picture, and possibly a text behind it.

transformers' modules make states of a picture. The decoder attends to these, or an encoder of texts takes them before
the embeddings of a text's tokens.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from math import isqrt
from typing import Any, Final

import torch

from stentor.kernels.native.processor import multiplies_bfloat16

from ..layers.linear.layer_context import LayerContext
from ..layers.linear.linear import Linear
from ..layers.linear.packed import PackedTable
from ..layers.linear.weights import WeightMap
from ..model_config.config_fields import ConfigError
from ..model_config.seq2seq.pictured import PICTURES, PROJECTION
from ..model_config.seq2seq.text import TextToTextConfig
from ..model_config.spec.picture_source import PictureSource
from ..model_config.transformers_config import configuration, first_line
from .encoder_stack import EncodedWindows, Windows, go_on
from .text_encoder import TextEncoder
from .towers.payload import read_payload
from .transformers.names import module_tensors
from .transformers.radio import RADIO_WITH_NECK, radio_with_neck

_PIXELS: Final = "pixel_values"
_COUNT_BYTES: Final = 4
_WORDS: Final = ("language_model",)
"""Parts of modules that are no encoder of pictures."""
_SAID_BY_FILES: Final = ("norm_mean", "norm_std")
"""Buffers whose values in files count, where files have them."""
_OWN: Final[Mapping[str, Callable[[], Any]]] = {RADIO_WITH_NECK: radio_with_neck}
"""Makers of classes that transformers lacks, by name."""


class PictureEncoder:
    """Encodes windows, each a picture: a processor's output (:mod:`.towers.payload`); where texts are read too, behind
    the number of a text's tokens and these tokens, all int32."""

    def __init__(
        self, weights: WeightMap, config: TextToTextConfig, context: LayerContext, words: torch.Tensor | PackedTable
    ) -> None:
        """``words``: as of :class:`.text_encoder.TextEncoder`."""
        assert config.pictures is not None
        self._source, self._context = config.pictures, context
        self._modules = _PictureModules(weights, config.pictures, context)
        self._project: Linear | None = None
        if config.pictures.projected:
            parts = {PROJECTION: config.hidden_size}
            self._project = Linear(weights, parts, config.pictures.size, context, bias=True, dtype=context.stream)
        self._texts = None if config.encoder_stack is None else TextEncoder(weights, config, context, words)
        self._longest_text = config.longest_text

    def __call__(
        self, windows: Windows, after_layer: Callable[[], None] | None = None, adapters: Sequence[int] = ()
    ) -> EncodedWindows:
        """Encode windows; an empty one stands for the largest picture, of zeros, with the longest text. None has an
        adapter.

        ``after_layer``: called between parts of the work. Raises ValueError for a picture that the encoder does not
        take.
        """
        pause = after_layer or go_on
        states, texts = [], []
        for window in windows:
            pixels, text = self._read(window)
            states.append(self._states(pixels, pause))
            texts.append(text)
        if self._texts is None:
            return EncodedWindows(torch.cat(states), [len(each) for each in states])
        return self._texts.encode(texts, states, after_layer)

    def converted(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """A checkpoint's tensors, of which those of modules get transformers' present names and shapes."""
        own: list[tuple[str, torch.Tensor]] = []
        for name, tensor in tensors:
            if name.startswith(PICTURES):
                own.append((name.removeprefix(PICTURES), tensor))
            else:
                yield name, tensor
        yield from self._modules.converted(own)

    def _read(self, window: bytes | memoryview) -> tuple[torch.Tensor, torch.Tensor]:
        """Pixels [1, channels, height, width], and tokens of the text, int64."""
        source = self._source
        if not len(window):
            pixels = torch.zeros(1, source.channels, *source.sides)
            return pixels, torch.zeros(self._longest_text, dtype=torch.int64)
        data, tokens = bytes(window), torch.zeros(0, dtype=torch.int64)
        if self._texts is not None:
            count = int.from_bytes(data[:_COUNT_BYTES], "little")
            end = _COUNT_BYTES * (1 + count)
            if count > self._longest_text or end > len(data):
                raise ValueError(
                    f"a text of {count} tokens stands before it, and at most {self._longest_text} are read"
                )
            tokens = torch.frombuffer(bytearray(data[_COUNT_BYTES:end]), dtype=torch.int32).long() if count else tokens
            data = data[end:]
        found = read_payload(data).tensors.get(_PIXELS)
        if found is None or found.dim() != 4 or len(found) != 1 or not source.states_of(*found.shape[1:]):
            shape = "none" if found is None else list(found.shape)
            expected = [1, source.channels, *source.sides]
            raise ValueError(f"its pixels are {shape}, and the model's config.json describes {expected}")
        return found, tokens

    def _states(self, pixels: torch.Tensor, pause: Callable[[], None]) -> torch.Tensor:
        """[states, size]"""
        states = self._modules(pixels, pause).to(self._context.stream)
        if self._project is None:
            return states
        projected = self._project(states)
        assert isinstance(projected, torch.Tensor)
        return projected


class _PictureModules:
    """transformers' modules, whose tensors are allocated as those of other layers."""

    def __init__(self, weights: WeightMap, source: PictureSource, context: LayerContext) -> None:
        self._read = _READERS.get(source.made_by, _last_states)
        self._pause: Callable[[], None] = go_on
        slow = context.device.type == "cpu" and not multiplies_bfloat16()
        self._device, self._dtype = context.place, torch.float32 if slow else context.dtype
        try:
            self._model, self._conversions = _made(source, self._dtype)
        except ConfigError:
            raise
        except Exception as error:  # another library's code may raise anything
            raise ConfigError(
                f"transformers cannot make {source.made_by} of its config.json: {type(error).__name__}, "
                f"{first_line(error)}"
            ) from error
        model = self._model
        for path, module in model.named_modules():
            beginning = f"{path}." if path else ""
            for name, parameter in module.named_parameters(recurse=False):
                held = context.empty(*parameter.shape, dtype=parameter.dtype)
                module.register_parameter(name, torch.nn.Parameter(held, requires_grad=False))
                getattr(module, name)._is_hf_initialized = True
                weights.add(f"{PICTURES}{beginning}{name}", held)
            for name, buffer in module.named_buffers(recurse=False):
                if name in _SAID_BY_FILES:
                    held = context.empty(*buffer.shape, dtype=buffer.dtype)
                    held._is_hf_initialized = context.filled  # type: ignore[attr-defined]  # kept values stay
                    weights.offer(f"{PICTURES}{beginning}{name}", held)
                else:
                    held = torch.empty_like(buffer, device=self._device)
                    weights.pass_over(f"{PICTURES}{beginning}{name}")
                module.register_buffer(name, held, name in _stored(module))
        if not context.shapes_only:
            model.initialize_weights()  # fills buffers alone
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_pre_hook(self._before)
        self._tensors: Mapping[str, torch.Tensor] = model.state_dict()
        windows = (module for module in model.modules() if hasattr(module, "set_shift_and_window_size"))
        self._windows = [(module, module.shift_size, module.window_size) for module in windows]
        """Layers of Swin, which a small picture changes for all later ones."""

    def _before(self, *_: object) -> None:
        self._pause()

    def converted(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Raises :class:`..layers.linear.weights.WeightError`."""
        for name, tensor in module_tensors(self._model, self._conversions, self._tensors, tensors):
            yield PICTURES + name, tensor

    @torch.inference_mode()
    def __call__(self, pixels: torch.Tensor, pause: Callable[[], None]) -> torch.Tensor:
        """[1, channels, height, width] → [states, size]. Raises ValueError for pixels that the modules refuse."""
        self._pause = pause
        for module, shift, window in self._windows:
            module.shift_size, module.window_size = shift, window
        try:
            return self._read(self._model, pixels.to(self._device, self._dtype))[0]
        except (torch.AcceleratorError, torch.OutOfMemoryError):
            raise
        except (TypeError, RuntimeError, IndexError, AttributeError) as error:
            raise ValueError(f"the encoder cannot take pixels {list(pixels.shape)}: {first_line(error)}") from error
        finally:
            self._pause = go_on


def _made(source: PictureSource, dtype: torch.dtype) -> tuple[Any, Sequence[Any]]:
    """The modules without memory, and transformers' conversions of names."""
    import transformers
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.initialization import no_init_weights

    with ExitStack() as stack:
        stack.enter_context(no_init_weights())
        stack.enter_context(torch.device("meta"))
        kind = _OWN[source.made_by]() if source.made_by in _OWN else getattr(transformers, source.made_by)
        model: Any = kind._from_config(configuration(source.described), dtype=dtype)
    conversions = get_model_conversion_mapping(model)
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    for part in _WORDS:
        if hasattr(model, part):
            setattr(model, part, None)
    return model.eval().requires_grad_(False), conversions


def _stored(module: torch.nn.Module) -> set[str]:
    """Names of a module's own buffers that files have."""
    return {*module._buffers} - module._non_persistent_buffers_set


def _last_states(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = model(pixel_values=pixels, return_dict=True).last_hidden_state
    return found


def _florence(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = model.get_image_features(pixels, return_dict=True).pooler_output
    return found


def _formulas(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = model(pixel_values=pixels, return_dict=True).pooler_output
    return found


def _patched(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """Of Pix2Struct: the values of each patch, channel by channel within a pixel, and its row and column, from 1. The
    class would take these numbers in the type of the values, and so lose some in bfloat16."""
    inputs, channels = model.embeddings, pixels.shape[1]
    side = isqrt(inputs.patch_projection.in_features // channels)
    rows, columns = (length // side for length in pixels.shape[2:])
    cut = pixels[:, :, : rows * side, : columns * side].unflatten(2, (rows, side)).unflatten(4, (columns, side))
    flat = cut.permute(0, 2, 4, 3, 5, 1).reshape(1, rows * columns, -1)  # [1, patches, values]
    row, column = torch.cartesian_prod(*(torch.arange(1, each + 1, device=flat.device) for each in (rows, columns))).T
    embedded = inputs.patch_projection(flat) + inputs.row_embedder(row) + inputs.column_embedder(column)
    found: torch.Tensor = model.layernorm(model.encoder(embedded).last_hidden_state)
    return found


_READERS: Final[Mapping[str, Callable[[Any, torch.Tensor], torch.Tensor]]] = {
    "Florence2Model": _florence,
    "Pix2StructVisionModel": _patched,
    "PPFormulaNetVisionModel": _formulas,
}
"""By class, how states [1, states, size] are computed, if they are not a model's last hidden states."""
