"""Makes a case that differs smaller."""

from typing import Final

from stentor.tests.engine.combinations.cases import Case, smaller
from stentor.tests.engine.combinations.playing import Models, Report, play

TRIES: Final = 300


def shrink(case: Case, models: Models, tries: int = TRIES) -> tuple[Case, Report]:
    """The smallest case found that still differs, after so many that were played."""
    report = play(case, models)
    went_on = True
    while went_on:
        went_on = False
        for each in smaller(case):
            if not tries:
                return case, report
            tries -= 1
            found = play(each, models)
            if found.problems:
                case, report, went_on = each, found, True
                break
    return case, report
