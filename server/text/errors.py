"""What turning text into tokens can raise.

    TextError
    ├── TokenizerError   a model's tokenizer cannot be found, read or used
    ├── TemplateError    a chat template cannot be compiled or rendered
    ├── TextTooLong      a text has more tokens than its caller can use
    ├── TextTooLarge     a text takes more memory to be tokenized than may be taken
    └── TemplatesWait    as many templates of requests wait to be rendered as may

Every message is one line that may be shown to a client: it holds no paths and no source lines of
ours. :class:`TokenizerError` alone may name the path that the operator gave.
"""


class TextError(Exception):
    """The base of everything that this package raises."""


class TokenizerError(TextError):
    """A tokenizer cannot be found, read or used."""


class TemplateError(TextError):
    """A chat template cannot be compiled or rendered, or was given what it may not be given."""


class TextTooLong(TextError):
    """A text has more tokens than its caller can use; found without encoding it."""

    def __init__(self, fewest: int) -> None:
        super().__init__(f"The text has at least {fewest} tokens.")
        self.fewest = fewest


class TextTooLarge(TextError):
    """A text has so many tokens that there is no memory to encode it; found without doing so."""

    def __init__(self, tokens: int, most: int, field: str) -> None:
        super().__init__(
            f"`{field}` has some {tokens} tokens; this server has memory to tokenize {most} at a time. Send less."
        )
        self.field = field


class TemplatesWait(TextError):
    """As many templates that requests brought wait to be rendered as may."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} chat templates of requests wait to be rendered, as many as may; try again later.")
