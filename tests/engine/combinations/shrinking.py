"""Makes a case that differs smaller."""

import time

from stentor.tests.engine.combinations.cases import Case, smaller
from stentor.tests.engine.combinations.playing import Models, Report, play


def shrink(case: Case, models: Models, seconds: float) -> tuple[Case, Report]:
    """The smallest case found in this time that still differs."""
    until = time.monotonic() + seconds
    report = play(case, models)
    went_on = True
    while went_on:
        went_on = False
        for each in smaller(case):
            if time.monotonic() > until:
                return case, report
            found = play(each, models)
            if found.problems:
                case, report, went_on = each, found, True
                break
    return case, report
