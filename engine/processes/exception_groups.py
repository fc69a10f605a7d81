"""What went wrong inside a task group, which wraps every error in an exception group."""


def first_cause(error: BaseException) -> BaseException:
    """The first error inside an exception group, however deep; any other error is its own."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def one_line(error: BaseException) -> str:
    """The message without line breaks, or the type's name where there is none."""
    return " ".join(str(error).split()) or type(error).__name__
