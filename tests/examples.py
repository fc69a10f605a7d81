"""How many examples a property is tried on: few in ``make test``, more in ``make properties``."""

from hypothesis import settings

MORE = "more"
"""The profile of the long form: ``pytest --hypothesis-profile=more``."""


def examples(few: int, more: int | None = None) -> int:
    """For ``settings(max_examples=…)``: half of ``few``, or in the long form ``more``, by default ten times as many."""
    return (more or 5 * few) if settings.get_current_profile_name() == MORE else (few + 1) // 2
