"""What a caller asks of an engine."""

from collections.abc import Sequence

import msgspec

from stentor.protocols.ipc.actors import Thinking
from stentor.protocols.ipc.adapters import AdapterRef
from stentor.protocols.ipc.audio import PromptProbe
from stentor.protocols.ipc.pooling import Pooling
from stentor.protocols.ipc.sampling import SamplingParams

from .media import Media


class EngineRequest(msgspec.Struct, frozen=True):
    """One prompt and how to continue it, ``len(seeds)`` times."""

    prompt: list[int]
    params: SamplingParams
    seeds: list[int]
    """Unsigned 64 bits, one for each sequence."""
    priority: int = 0
    """Lower runs earlier."""
    salt: str = ""
    """Requests share cached prefixes only under the same salt."""
    session: bytes = b""
    """Requests of one session go to one engine, as in :class:`.replicas.EngineChoice`, before which this counts."""
    name: str = ""
    """The request's id, for logs."""
    arrival: float | None = None
    """By ``time.monotonic()``, for a request that continues an earlier one and keeps its importance; None: now."""
    grammar: str = ""
    """Of each sequence, in llguidance's dialect of Lark or as the JSON of its grammars; empty: none. Needs
    :meth:`.client.EngineClient.set_vocabulary`."""
    thinking: Thinking | None = None
    """The thinking budget, which needs the vocabulary too; None: no limit."""
    media: Sequence[Media] = ()
    """Media that stand in the prompt or are attended to."""
    probe: PromptProbe | None = None
    """Results wanted of the prompt besides tokens."""
    streamed: bytes | None = None
    """First audio of a streaming transcription, continued by :meth:`.stream.RequestStream.append`."""
    pooling: Pooling | None = None
    """What a pooling model returns for the prompt, in place of tokens."""
    resumed: list[list[int]] | None = None
    """Tokens by sequence, known from an earlier run of the server or an earlier request; each continues after them."""
    adapter: AdapterRef | None = None
    """The LoRA adapter."""
