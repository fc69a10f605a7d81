"""transformers' modules as they are, for parts of models that are not ours."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch

from ...model_config.config_fields import ConfigError
from ...model_config.transformers_config import configuration, first_line


def plain_modules(module: str, described: Mapping[str, object], dtype: torch.dtype, place: torch.device) -> Any:
    """The modules of transformers' class ``module`` for a config.json, with values in buffers only; parts that it keeps
    in float32 are. Raises :class:`ConfigError`."""
    import transformers
    from transformers.initialization import no_init_weights

    which: Any = getattr(transformers, module)
    made = configuration(described)
    try:
        with ExitStack() as stack:
            stack.enter_context(no_init_weights())
            stack.enter_context(torch.device(place))
            model = which._from_config(made, dtype=dtype)
    except Exception as error:  # another library's code
        raise ConfigError(f"transformers cannot make its {module}: {first_line(error)}") from error
    model.eval().requires_grad_(False)
    model.tie_weights()
    exact = tuple(model._keep_in_fp32_modules_strict or ())
    for path, tensor in (*model.named_parameters(), *model.named_buffers()):
        if any(part in path for part in exact) and tensor.is_floating_point():
            tensor.data = tensor.data.float()
    return model
