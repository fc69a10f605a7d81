"""Scores of tokens at each position of a window of audio, by transformers' modules: an encoder and its CTC head."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from torch.func import functional_call

from stentor.protocols.ipc.audio import SAMPLE_RATE

from ...layers.audio.delta_mel import DeltaMel, DeltaMelSettings
from ...layers.linear.layer_context import LayerContext
from ...layers.linear.weights import WeightMap
from ...loading.ctc_adapters import adapter_files, check_adapter
from ...loading.safetensors_index import read_json
from ...model_config.config_fields import ConfigError, Fields
from ...model_config.speech.fast_conformer import HOP, MOST_SAMPLES
from ...model_config.speech.framewise import ModulesEncoderSpec
from ...model_config.transformers_config import first_line
from ..encoder_stack import Windows, go_on
from ..transformers.names import module_tensors
from ..transformers.plain import plain_modules

_EXTRACTOR_FILES: Final = ("preprocessor_config.json", "processor_config.json")
_UNUSED: Final = ("masked_spec_embed", "num_batches_tracked", "position_ids")
"""Endings of tensors of training, and of those that modules make themselves."""
_KEPT_LANGUAGES: Final = 16
_LAYERS: Final = ("layers", "conv_layers")
"""Names of lists of layers, between which others may use the device."""
_Extract = Callable[[npt.NDArray[np.float32]], Mapping[str, torch.Tensor]]
"""float32 samples [samples] to the modules' inputs, by name, of one window."""


class CTCModules:
    """Windows in, scores out; a window is computed by itself, as transformers does, since some norms would see padding.
    No LoRA adapter changes it."""

    def __init__(self, spec: ModulesEncoderSpec, context: LayerContext, folder: Path) -> None:
        """``folder``: where the model's files say how its input is made. Raises :class:`ConfigError`."""
        self.weights = WeightMap()
        self._spec, self._context = spec, context
        self._model = plain_modules(spec.module, spec.described, context.dtype, context.place)
        self._extract = _extractor(spec, folder)
        self._tensors: Mapping[str, torch.Tensor] = self._model.state_dict()
        tied = self._model.all_tied_weights_keys
        self.weights.pass_over(*tied)
        for name, tensor in self._tensors.items():
            if name not in tied and not name.endswith(_UNUSED):
                self.weights.add(name, tensor)
        self._adapters = _Adapters(self._model, context, folder)
        self._pause: Callable[[], None] = go_on
        for name, layers in self._model.named_modules():
            if isinstance(layers, torch.nn.ModuleList) and name.rpartition(".")[2] in _LAYERS:
                for layer in layers:
                    layer.register_forward_hook(lambda *_: self._pause())

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Raises :class:`...layers.linear.weights.WeightError`."""
        from transformers.conversion_mapping import get_model_conversion_mapping

        conversions: Sequence[Any] = get_model_conversion_mapping(self._model)
        self.weights.load(module_tensors(self._model, conversions, self._tensors, tensors), ignore=_UNUSED)

    def __call__(
        self, windows: Windows, after_layer: Callable[[], None] | None = None, languages: Sequence[int] = ()
    ) -> list[torch.Tensor]:
        """Scores [positions, tokens] of each window; see :class:`..encoder_stack.AudioEncoder`.

        ``languages``: numbers of adapters (:mod:`...loading.ctc_adapters`), 0 for the model's own weights.
        """
        self._pause = after_layer or go_on
        try:
            return [self._scores(window, language) for window, language in zip(windows, languages, strict=True)]
        finally:
            self._pause = go_on

    def _scores(self, window: bytes | memoryview, language: int) -> torch.Tensor:
        """[positions, tokens]"""
        stored = np.frombuffer(window, "<i2") if len(window) else np.zeros(MOST_SAMPLES, "<i2")
        samples = stored.astype(np.float32) / 32768
        filled = np.zeros(max(len(samples), self._spec.fewest_samples), np.float32)
        filled[: len(samples)] = samples
        given = self._extract(filled)
        moved = {name: self._moved(tensor) for name, tensor in given.items()}
        changed = self._adapters[language]
        scores: torch.Tensor = functional_call(self._model, changed, (), {**moved, "return_dict": True}).logits[0]
        return scores

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        floats = tensor.is_floating_point()
        return tensor.to(self._context.device, self._context.dtype if floats else None)


class _Adapters:
    """Weights in place of the model's own, for other languages; those of the last ones are kept."""

    def __init__(self, model: Any, context: LayerContext, folder: Path) -> None:
        self._files: Sequence[Path] = ()
        self._kept: OrderedDict[int, dict[str, torch.Tensor]] = OrderedDict()
        self._context = context
        if getattr(model.config, "adapter_attn_dim", None) is None:
            return
        self._files = tuple(adapter_files(folder).values())
        shapes = {name: tuple(tensor.shape) for name, tensor in model._get_adapters().items()}
        for file in self._files:
            check_adapter(file, shapes)

    def __getitem__(self, language: int) -> dict[str, torch.Tensor]:
        """By names of the modules' tensors; empty for the model's own."""
        if not language:
            return {}
        if language not in self._kept:
            tensors = load_file(self._files[language - 1])
            moved = {name: each.to(self._context.device, self._context.dtype) for name, each in tensors.items()}
            self._kept[language] = moved
        self._kept.move_to_end(language)
        while len(self._kept) > _KEPT_LANGUAGES:
            self._kept.popitem(last=False)
        return self._kept[language]


def _extractor(spec: ModulesEncoderSpec, folder: Path) -> _Extract:
    """Makes the input, with the settings of the model's files or the defaults. Raises :class:`ConfigError`."""
    file = next((each for each in _EXTRACTOR_FILES if (folder / each).is_file()), None)
    found = {} if file is None else read_json(folder / file)
    inner = found.get("feature_extractor", found)
    settings = inner if isinstance(inner, dict) else {}
    try:
        make = _delta_mel if spec.features == "GraniteSpeech5FeatureExtractor" else _of_transformers
        made, rate = make(spec, settings)
    except Exception as error:  # another library's code
        raise ConfigError(f"its {spec.features} cannot be made by {file}: {first_line(error)}") from error
    if rate != SAMPLE_RATE:
        raise ConfigError(f"{file}: sampling_rate is {rate}, expected {SAMPLE_RATE}")
    return made


def _of_transformers(spec: ModulesEncoderSpec, settings: dict[str, Any]) -> tuple[_Extract, int]:
    """The input of samples, and how many a second it takes."""
    import transformers

    made = getattr(transformers, spec.features).from_dict(settings)
    return lambda samples: made(samples, sampling_rate=SAMPLE_RATE, return_tensors="pt"), made.sampling_rate


def _delta_mel(spec: ModulesEncoderSpec, settings: dict[str, Any]) -> tuple[_Extract, int]:
    bins = Fields(Fields(spec.described).table("encoder_config") or {}).integer("num_mel_bins", 80)
    told = DeltaMelSettings.of({"num_mel_bins": bins, **settings})
    if (told.hop_length, told.num_mel_bins) != (HOP, bins):
        raise ValueError(
            f"hop_length is {told.hop_length} and num_mel_bins {told.num_mel_bins}, expected {HOP} and the {bins} of "
            "config.json's encoder_config"
        )
    mel = DeltaMel(told)
    return lambda samples: {"input_features": mel(torch.from_numpy(samples)).unsqueeze(0)}, told.sampling_rate
