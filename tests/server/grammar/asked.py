"""What a request wants, of its ``structured_outputs`` or other fields."""

from typing import Any

from stentor.protocols.common.limits import Limits
from stentor.protocols.openai.sampling import SamplingFields
from stentor.protocols.openai.structured import Answer, wanted_answer


def asked(structured_outputs: Any = None, limits: Limits | None = None, **fields: Any) -> Answer:
    answer = wanted_answer(SamplingFields(structured_outputs=structured_outputs, **fields), limits or Limits())
    assert answer is not None
    return answer
