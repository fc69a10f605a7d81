"""A request's options for a model's processor."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from stentor.protocols.common.errors import wrong

_FLAGS: Final = frozenset({"do_image_splitting", "do_pan_and_scan", "crop_to_patches"})
_COUNTS: Final = frozenset(
    {
        *("min_pixels", "max_pixels", "min_patches", "max_patches", "num_frames"),
        *("pan_and_scan_min_crop_size", "pan_and_scan_max_num_crops", "max_soft_tokens"),
    }
)
_NUMBERS: Final = frozenset({"fps", "pan_and_scan_min_ratio_to_activate"})
_EDGES: Final = frozenset({"shortest_edge", "longest_edge"})
_OF_EDGES: Final[Mapping[str, str]] = {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}
_FRAMES: Final = frozenset({"fps", "num_frames"})
_MOST: Final = 1 << 31
_NESTED: Final = ("images_kwargs", "videos_kwargs", "audio_kwargs")
PROCESSOR_FIELD: Final = "mm_processor_kwargs"
LOADING_FIELD: Final = "media_io_kwargs"
UNKNOWN_OPTION: Final = "unknown_processor_option"
"""Code of a refusal for an option of :data:`PROCESSOR_FIELD` that the model's processor has not got."""
NO_OPTIONS: Final[Mapping[str, object]] = MappingProxyType({})
LOW_DETAIL_PIXELS: Final = 512 * 512
"""Most pixels of a picture in low detail, as for OpenAI's models."""


def request_options(
    processor_kwargs: Mapping[str, Any] | None, loading_kwargs: Mapping[str, Any] | None
) -> dict[str, object]:
    """Both fields of a request. Raises BadRequest, also where there are no media."""
    return {**processor_options(processor_kwargs), **loading_options(loading_kwargs)}


def processor_options(given: Mapping[str, Any] | None, field: str = PROCESSOR_FIELD) -> dict[str, object]:
    """The arguments of a request for the processor, in their checked form.

    Only options that set the resolution of media are taken. Others would make tensors that the model was not made
    for. Raises BadRequest naming ``field``.
    """
    options: dict[str, object] = {}
    for name, value in (given or {}).items():
        if name in _NESTED and isinstance(value, Mapping):
            options |= processor_options(value, f"{field}.{name}")
        else:
            options[name] = _checked(name, value, f"{field}.{name}")
    return options


def with_defaults(given: Mapping[str, object], defaults: Mapping[str, object]) -> dict[str, object]:
    """A request's options, and of ``defaults`` those that they leave open. Pixels become edges of ``size``; the choice
    of a video's frames by number or rate is one option."""
    if _FRAMES & given.keys():
        defaults = {name: value for name, value in defaults.items() if name not in _FRAMES}
    whole = {**defaults, **given}
    size = {**_size_of(defaults), **_size_of(given)}
    return {name: value for name, value in whole.items() if name not in _OF_EDGES} | ({"size": size} if size else {})


def _size_of(options: Mapping[str, object]) -> dict[str, object]:
    size = options.get("size")
    named = {edge: options[name] for name, edge in _OF_EDGES.items() if name in options}
    return {**(size if isinstance(size, Mapping) else {}), **named}


def _checked(name: str, value: object, field: str) -> object:
    if name in _FLAGS:
        if isinstance(value, bool):
            return value
        raise wrong(field, "must be true or false")
    if name in _COUNTS:
        return _count(value, field)
    if name in _NUMBERS:
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _MOST:
            return value
        raise wrong(field, "must be a number above 0")
    if name == "size":
        if not isinstance(value, Mapping) or not value or not value.keys() <= _EDGES:
            raise wrong(field, "must be an object of `shortest_edge` and `longest_edge`")
        return {edge: _count(length, f"{field}.{edge}") for edge, length in value.items()}
    known = ", ".join(f"`{known}`" for known in sorted((*_FLAGS, *_COUNTS, *_NUMBERS, "size")))
    raise wrong(field, f"is not taken; known are {known}")


def _count(value: object, field: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST:
        return value
    raise wrong(field, "must be a whole number above 0")


def loading_options(given: Mapping[str, Any] | None) -> dict[str, object]:
    """vLLM's ``media_io_kwargs``, by modality: the choice of a video's frames; None: as the model's files say. Raises
    BadRequest."""
    options: dict[str, object] = {}
    for modality, values in (given or {}).items():
        field = f"{LOADING_FIELD}.{modality}"
        if modality != "video" or not isinstance(values, Mapping):
            raise wrong(field, "is not taken; known is `video` with `num_frames` and `fps`")
        for name, value in values.items():
            if name not in _FRAMES:
                raise wrong(f"{field}.{name}", "is not taken; known are `num_frames` and `fps`")
            # vLLM's value for the model's own setting is -1
            options[name] = None if value == -1 else _checked(name, value, f"{field}.{name}")
    return options
