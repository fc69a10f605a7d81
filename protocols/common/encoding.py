"""JSON, as every answer, event and stored object is written."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

encode: Final[Callable[[Any], bytes]] = msgspec.json.Encoder().encode
