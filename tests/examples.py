"""How many examples a property is tried on: few in ``make test``, more in ``make properties``."""

from hypothesis import settings

MORE = "more"
"""The profile of the long form: ``pytest --hypothesis-profile=more``."""


def examples(few: int, more: int) -> int:
    """For ``settings(max_examples=…)`` of properties whose examples are dear."""
    return more if settings.get_current_profile_name() == MORE else few
