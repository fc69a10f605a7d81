"""How long and how far ahead realtime sessions may go."""

from typing import Final

from .. import kinds
from ..option import Option

OPTIONS: Final = (
    Option(
        "realtime-max-seconds",
        "realtime.max_seconds",
        kinds.some_seconds(),
        "how long a realtime session may last",
        "realtime",
    ),
    Option(
        "realtime-max-input-seconds",
        "realtime.max_input_seconds",
        kinds.some_seconds(),
        "audio that a realtime session may hold before it is committed or a turn is found in it",
        "realtime",
    ),
    Option(
        "realtime-max-audio-bytes",
        "realtime.max_audio_bytes",
        kinds.size(),
        "audio of callers that all realtime sessions hold together, a quarter of it for those that hold little; one "
        "that would hold more is told so and goes on",
        "realtime",
    ),
    Option(
        "realtime-playback-lead",
        "realtime.audio_ahead",
        kinds.some_seconds(),
        "how far ahead of being played the audio of an answer may be sent",
        "realtime",
        aliases=("realtime-audio-ahead",),
    ),
)
