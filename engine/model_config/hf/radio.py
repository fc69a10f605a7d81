"""Fields of C-RADIO (arXiv:2312.06709), the encoder of pictures of Nemotron's models. Torch-free."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from ..config_fields import MOST_LAYERS, ConfigError, Fields


class RadioSizes(NamedTuple):
    width: int
    layers: int
    heads: int


_SIZES: Final[Mapping[str, RadioSizes]] = {
    "vit_small_patch16_224": RadioSizes(384, 12, 6),
    "vit_base_patch16_224": RadioSizes(768, 12, 12),
    "vit_large_patch16_224": RadioSizes(1024, 24, 16),
    "vit_huge_patch16_224": RadioSizes(1280, 32, 16),
}
"""By the name in files."""


class RadioTokens(NamedTuple):
    """Tokens before those of patches."""

    classes: int
    """Those that sum up the picture: one a teacher."""
    registers: int
    """Those behind them, which fill up a multiple."""
    summaries: tuple[int, ...]
    """Which of the first are used."""


def radio_sizes(vision: Fields, args: Fields, field: str) -> RadioSizes:
    """``args``: the table of this name in ``vision``, which files call ``field``. Raises :class:`ConfigError` for an
    unknown name."""
    name = args.text("model", "vit_huge_patch16_224")
    if (sizes := _SIZES.get(name)) is None:
        raise ConfigError(f"{field}.args.model is {name[:40]!r}, expected one of {', '.join(_SIZES)}")
    return RadioSizes(
        vision.integer("hidden_size", sizes.width),
        vision.integer("num_hidden_layers", sizes.layers, most=MOST_LAYERS),
        vision.integer("num_attention_heads", sizes.heads),
    )


def radio_tokens(args: Fields) -> RadioTokens:
    told = args.get("teachers")
    teachers = [Fields(each) for each in told if isinstance(each, Mapping)] if isinstance(told, list | tuple) else []
    names = {str(each.get("name")) for each in teachers}
    classes = max(1, len(names)) if args.flag("cls_token_per_teacher", True) else 1
    multiple = args.integer("register_multiple", 0, least=0, most=MOST_LAYERS)
    summaries = tuple(at for at, each in enumerate(teachers) if each.flag("use_summary", True))
    return RadioTokens(classes, multiple - classes % multiple if multiple else 0, summaries)
