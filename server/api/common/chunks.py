"""What the streams of chat and completions have in common: the frame of a chunk, written once.

A streamed token costs one JSON-encoded string between two constants; nothing else of a chunk changes.
"""

from dataclasses import dataclass
from typing import Final

from stentor.protocols.common.encoding import encode
from stentor.protocols.openai.usage import Usage

END: Final = b"\n\n"
NULL: Final = b"null"


@dataclass(frozen=True)
class ChunkFrame:
    """The constant parts of every chunk of one response, and how usage ends them.

    ``data: {"id":…,"choices":[`` *choice* ``]`` *usage* ``}``
    """

    head: bytes
    include_usage: bool
    continuous_usage: bool

    @classmethod
    def of(cls, kind: str, response_id: str, created: int, model: str, usage: bool, continuous: bool) -> "ChunkFrame":
        fields = {"id": response_id, "object": kind, "created": created, "model": model}
        return cls(b"data: " + encode(fields)[:-1] + b',"choices":[', usage, continuous)

    def tail(self, usage: Usage) -> bytes:
        """From the end of the choice to the end of the frame."""
        if self.continuous_usage:
            return b'],"usage":' + encode(usage) + b"}" + END
        return b'],"usage":null}' + END if self.include_usage else b"]}" + END

    def last(self, usage: Usage) -> bytes:
        """The chunk without choices that carries the usage of the whole request, where it was asked for."""
        return self.head + b'],"usage":' + encode(usage) + b"}" + END if self.include_usage else b""
