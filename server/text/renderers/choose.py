"""Which renderer a model gets, and the one that most get: its own chat template."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from ...config.models import RendererName
from ..pool import TokenizerPool
from . import deepseek_v4, deepseek_v32, deepseek_v41, kimi_k3
from .harmony import HarmonyRenderer
from .interface import Renderer, RenderRequest
from .mistral import MistralRenderer, RendererError, find_file
from .plain import CodedRenderer

_CODED: Final[Mapping[RendererName, tuple[Callable[[RenderRequest], str | list[str]], str]]] = {
    "deepseek_v32": (deepseek_v32.write, deepseek_v32.MARKS),
    "deepseek_v4": (deepseek_v4.write, deepseek_v4.MARKS),
    "deepseek_v41": (deepseek_v41.write, deepseek_v41.MARKS),
    "kimi_k3": (kimi_k3.write, kimi_k3.MARKS),
}
"""By model type, which is the renderer's name; see :class:`.plain.CodedRenderer`."""

_TOLD_BY_CODE: Final = ("forbidden_tools", "must_call", "response_format")
"""Fields of a conversation that templates are not given."""


class TemplateRenderer:
    """Jinja in a sandbox; see :mod:`..templates.chat_template`."""

    def __init__(self, pool: TokenizerPool) -> None:
        self._pool = pool

    def takes_tools(self, chat_template: str | None) -> bool:
        return self._pool.chat_template.takes_tools(chat_template)

    async def render(self, conversation: RenderRequest) -> list[int]:
        return await self._pool.render_chat(
            **{name: value for name, value in msgspec.structs.asdict(conversation).items() if name not in _TOLD_BY_CODE}
        )


def choose_renderer(name: RendererName, pool: TokenizerPool, folder: Path, harmony_vocabulary: Path | None) -> Renderer:
    """The renderer of the option. ``auto`` takes the model's chat template if it has one, else its makers' format.

    A harmony vocabulary chooses harmony's renderer. Raises :class:`.mistral.RendererError`.
    """
    templated = pool.chat_template.has("default")
    if name == "auto":
        if harmony_vocabulary is not None:
            name = "harmony"
        elif not templated and (coded := [known for known in _CODED if known == _model_type(folder)]):
            (name,) = coded
        elif not templated and (folder / "tekken.json").is_file():
            name = "mistral"
    match name:
        case "mistral":
            file = find_file(folder)
            if file is None:
                raise RendererError(f"--renderer mistral: there is no tekken.json or tokenizer.model in {folder}")
            return MistralRenderer(pool, file)
        case "harmony":
            if harmony_vocabulary is None:
                raise RendererError(
                    "--renderer harmony: name its vocabulary too (--harmony-vocabulary, a file o200k_base.tiktoken), "
                    "or leave both out: the model's own template writes the same format"
                )
            return HarmonyRenderer(pool, harmony_vocabulary)
        case "deepseek_v32" | "deepseek_v4" | "deepseek_v41" | "kimi_k3":
            return CodedRenderer(pool, *_CODED[name])
        case _:
            return TemplateRenderer(pool)


def _model_type(folder: Path) -> str:
    """The model type of the configuration; empty if there is none."""
    file = folder / "config.json"
    try:
        config = msgspec.json.decode(file.read_bytes(), type=dict[str, object]) if file.is_file() else {}
    except (OSError, msgspec.DecodeError):
        return ""
    return str(config.get("model_type", ""))
