"""Errors of converting text to tokens.

    TextError
    ├── TokenizerError   a model's tokenizer cannot be found, read or used
    ├── TemplateError    a chat template cannot be compiled or rendered
    ├── TextTooLong      a text has more tokens than its caller can use
    └── TemplatesWait    the queue of requests' templates is full

Every message is one line for the client, without paths and source lines of ours. Only
:class:`TokenizerError` may contain the operator's path.
"""


class TextError(Exception):
    """The base of everything that this package raises."""


class TokenizerError(TextError):
    """A tokenizer cannot be found, read or used."""


class TemplateError(TextError):
    """A chat template cannot be compiled or rendered, or got unsupported input."""


class TextTooLong(TextError):
    """A text has more tokens than its caller can use; found without encoding it."""

    def __init__(self, fewest: int) -> None:
        super().__init__(f"The text has at least {fewest} tokens.")
        self.fewest = fewest


class TemplatesWait(TextError):
    """The queue of templates of requests is full."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} chat templates of requests wait to be rendered, as many as may; try again later.")
