"""``routed_experts``: which experts computed each token of an answer, as vLLM's clients read it."""

import base64
from typing import Final

from stentor.protocols.common.errors import wrong
from stentor.protocols.ipc.steps import ExpertShape
from stentor.protocols.openai.sampling import SamplingFields

from .chat_model import ChatModel

_MAGIC: Final = b"\x93NUMPY\x01\x00"
_FIELDS: Final = ("return_routed_experts", "routed_experts_prompt_start")


def first_position(chat: ChatModel, body: SamplingFields, *, wanted_tokens: int | None) -> int | None:
    """First position of each prompt whose experts are returned; None: none.

    With the operator's option they are returned in answers without streaming and beams, unless the client declines.
    Raises BadRequest if they are requested and cannot be returned.
    """
    if expert_shape(chat) is None:
        for field in _FIELDS:
            if getattr(body, field):
                why = "needs a mixture of experts that is served with --enable-return-routed-experts; leave it out"
                raise wrong(field, why, "unsupported")
        return None
    if wanted_tokens == 0 and body.return_routed_experts:
        raise wrong("return_routed_experts", "needs an answer of at least one token")
    if body.stream or body.use_beam_search or wanted_tokens == 0 or body.return_routed_experts is False:
        return None
    return body.routed_experts_prompt_start


def check_start(first: int | None, prompt_len: int) -> None:
    """Raises BadRequest for a position behind the prompt."""
    if first is not None and first > prompt_len:
        raise wrong("routed_experts_prompt_start", f"is {first}, and the prompt has {prompt_len} tokens")


def expert_shape(chat: ChatModel) -> ExpertShape | None:
    """Shape of the experts of each position; None if they are not returned."""
    return None if chat.client.ready is None else chat.client.ready.experts


def expert_bytes(chat: ChatModel, first: int | None) -> int:
    """Bytes of a token in an answer that returns experts from this position on."""
    shape = expert_shape(chat)
    return 0 if first is None or shape is None else shape.token_bytes * 4 // 3 + 1


def encoded_experts(data: bytes, shape: ExpertShape) -> bytes:
    """JSON: the base64 of a ``.npy`` file of [positions, layers, top_k]."""
    positions = len(data) // shape.token_bytes
    # without numpy, which takes 6 MiB and has no other use here:
    # https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
    kind = "|u1" if shape.width == 1 else f"<u{shape.width}"
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': ({positions}, {shape.layers}, {shape.top_k}), }}"
    padded = header.ljust(-(len(_MAGIC) + 2 + len(header) + 1) % 64 + len(header)) + "\n"
    file = _MAGIC + len(padded).to_bytes(2, "little") + padded.encode() + data
    return b'"' + base64.b64encode(file) + b'"'
