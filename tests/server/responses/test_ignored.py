"""Fields of responses that have no effect are said to have none, and those that are refused to be refused."""

import re
from pathlib import Path

from stentor.protocols.openai.responses.request import IGNORED_FIELDS, MOVED, REFUSED

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "fields.md").read_text()


def test_every_field_that_is_ignored_or_refused_is_listed() -> None:
    (section,) = re.findall(r"^## `POST /v1/responses`[^\n]*\n(.*?)^## ", PAGE, flags=re.DOTALL | re.MULTILINE)
    remarks = dict(re.findall(r"^\| `([\w.]+)` \|.*\| (ignored|refused) \|$", section, flags=re.MULTILINE))
    assert remarks == {**dict.fromkeys(IGNORED_FIELDS, "ignored"), **dict.fromkeys((*REFUSED, *MOVED), "refused")}
