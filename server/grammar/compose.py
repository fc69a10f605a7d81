"""Whole grammars: thinking, as far as there may be some, and then the answer."""

from .lark import Lark


def compose(
    lark: Lark,
    *,
    thinking_end: str | None,
    opened: bool,
    body: str,
    thinking_begin: str | None = None,
    newlines: bool = False,
) -> str:
    """The source of a grammar in which the expression ``body`` follows upon what the model thinks.

    ``thinking_end`` is the marker, text or special token, up to which any text is thought; None where the model does
    not think. ``opened``: the prompt has begun it, so the marker must come. Otherwise the model begins it itself with
    ``thinking_begin``, or answers at once; without that marker it cannot, for any text might then be a thought.
    ``newlines``: two at most may stand between, as models write them; they are no part of the answer.
    """
    if thinking_end is None or not (opened or thinking_begin):
        return lark.source(body)
    thought = lark.text_until(thinking_end)
    if newlines:
        thought = f'{thought} ("\\n" | "\\n\\n")?'
    if not opened:
        thought = f"({lark.literal(thinking_begin or '')} {thought})?"
    return lark.source(f"{thought} {lark.rule(body)}")
