"""Converts a checkpoint's tensors to the names and shapes of transformers' modules; and names that its versions do not
share."""

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from typing import Any

import torch

from ...layers.linear.weights import WeightError


def with_cache(forward: Callable[..., Any], own: Any, part: str = "") -> dict[str, Any]:
    """The argument of ``forward`` that gives it the cache ``own``: since transformers 5.24 it is named ``part`` and
    ``cache``."""
    return {part + _cache_name(getattr(forward, "__func__", forward), part): own}


@cache
def _cache_name(forward: Callable[..., Any], part: str) -> str:
    return "cache" if f"{part}cache" in inspect.signature(forward).parameters else "past_key_values"


def module_tensors(
    model: Any,
    conversions: Sequence[Any],
    known: Mapping[str, torch.Tensor],
    tensors: Iterable[tuple[str, torch.Tensor]],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Apply transformers' own ``conversions``.

    A tensor stored under its final name is yielded at once; one made of several, after all have been read. Tensors that
    the model ignores are left out. Raises :class:`WeightError`.
    """
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

    renamings = [each for each in conversions if isinstance(each, WeightRenaming)]
    converters = [each for each in conversions if isinstance(each, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    unused = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_unexpected or ()]
    waiting: defaultdict[str, list[tuple[Any, str, str, torch.Tensor]]] = defaultdict(list)
    prefix, names = model.base_model_prefix, dict(known)
    for stored, tensor in tensors:
        name, pattern = rename_source_key(stored, renamings, converters, prefix, names)
        if name not in known and stored in known:
            name, pattern = stored, None
        if pattern is not None and name in known:
            waiting[name].append((dot_natural_key(stored), stored, pattern, tensor))
        elif name in known or not any(each.search(stored) for each in unused):
            yield name, tensor
    for name, parts in waiting.items():
        parts.sort(key=lambda part: part[0])
        converter = deepcopy(by_pattern[parts[0][2]])
        for _, stored, pattern, tensor in parts:
            converter.add_tensor(name, stored, pattern, tensor)  # type: ignore[arg-type]  # it takes tensors as well
        try:
            made = converter.convert(name, model=model, config=model.config)
        except Exception as error:  # another library's operations on a file's contents
            raise WeightError(f"{name} cannot be made of what the checkpoint holds: {error}") from error
        for target, found in made.items():
            yield target, found[0] if isinstance(found, list) else found
