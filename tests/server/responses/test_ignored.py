"""Fields that have no effect are said to have none, and all that are decoded have one or are named."""

import re
from pathlib import Path

from stentor.protocols.openai.responses.request import IGNORED_FIELDS, REFUSED

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "endpoints.md").read_text()


def test_every_field_that_is_ignored_or_refused_is_listed() -> None:
    (paragraph,) = re.findall(r"^Of the Responses API, (.*?)\n\n", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert set(re.findall(r"`([\w.]+)`", paragraph)) >= {*IGNORED_FIELDS, *REFUSED}
