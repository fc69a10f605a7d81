"""Time limits that only hostile templates meet, however slow the machine is."""

from typing import Any, Final

from stentor.server.config.limits import DEFAULT_CHARS
from stentor.server.text.pool import TokenizerPool
from stentor.server.text.templates.template_process import TemplateProcess
from stentor.tests.fakes import byte_tokenizer

PATIENT: Final = 60.0
"""Seconds for whatever is in order."""


def patient_pool(foreign_seconds: float = PATIENT, **options: Any) -> TokenizerPool:
    """A pool whose own templates have plenty of time; ``foreign_seconds`` are for those that requests bring."""
    pool = TokenizerPool(byte_tokenizer(), render_seconds=PATIENT, **options)
    pool._foreign = TemplateProcess(pool.tokenizer.special_tokens, foreign_seconds, DEFAULT_CHARS)
    return pool
