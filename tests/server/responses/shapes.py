"""What the tests of the Responses API share."""

from typing import Final

from stentor.tests.wire.validate import Extensions

RESPONSES: Final = "/v1/responses"
CALLED: Final = frozenset({"server_label", "name", "arguments", "output", "error", "approval_request_id"})
"""Fields of our own: by these a call can be told to the model again."""
EXTENSIONS: Final[Extensions] = {
    "Response": frozenset({"store", "presence_penalty", "frequency_penalty"}),
    "ResponseFunctionWebSearch": CALLED,
    "ResponseCodeInterpreterToolCall": CALLED,
}
"""Fields that OpenAI sends and its SDK does not know, and those of ours."""
