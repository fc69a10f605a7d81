"""What a request wants, of its ``structured_outputs`` or other fields."""

from typing import Any

import msgspec

from stentor.protocols.common.limits import Limits
from stentor.protocols.openai.structured import Answer, wanted_answer


class Fields(msgspec.Struct):
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None


def asked(structured_outputs: Any = None, limits: Limits | None = None, **fields: Any) -> Answer:
    answer = wanted_answer(Fields(structured_outputs=structured_outputs, **fields), limits or Limits())
    assert answer is not None
    return answer
