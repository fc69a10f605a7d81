"""What the tests of the Responses API share."""

from typing import Final

from stentor.tests.wire.validate import Extensions

RESPONSES: Final = "/v1/responses"
EXTENSIONS: Final[Extensions] = {"Response": frozenset({"store", "presence_penalty", "frequency_penalty"})}
"""Fields that OpenAI sends and its SDK does not know."""
