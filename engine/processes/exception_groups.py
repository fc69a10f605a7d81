"""Finds errors inside exception groups, in which task groups wrap them."""


def first_cause(error: BaseException) -> BaseException:
    """The first leaf error of an exception group; any other error itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def one_line(error: BaseException) -> str:
    """The message without line breaks, or the type's name if it is empty."""
    return " ".join(str(error).split()) or type(error).__name__
