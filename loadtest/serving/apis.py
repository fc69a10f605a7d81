"""The APIs that can be loaded, by the name that ``--api`` takes."""

from collections.abc import Mapping
from typing import Final

from .api import Api
from .chat import Chat
from .completions import Completions

APIS: Final[Mapping[str, Api]] = {api.name: api for api in (Completions(), Chat())}
