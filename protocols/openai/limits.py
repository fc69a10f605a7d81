"""Every bound on what one request may ask for. All are checked before any work is done."""

from typing import Final

MAX_BODY_BYTES: Final = 32 * 2**20
MAX_MESSAGES: Final = 16384
MAX_CHOICES: Final = 128
"""``n`` of one prompt."""
MAX_SEQUENCES: Final = 1024
"""Prompts of one request times ``n``."""
MAX_STOP_STRINGS: Final = 16
MAX_STOP_LENGTH: Final = 1024
"""Characters of one stop string; the stream may have to hold back as many."""
MAX_STOP_TOKENS: Final = 256
MAX_LOGIT_BIAS: Final = 4096
MAX_ALLOWED_TOKENS: Final = 2**18
MAX_TEMPLATE_LENGTH: Final = 2**16
"""Characters of a chat template sent by a client."""
MAX_NAME_LENGTH: Final = 512
"""Characters of a model name, a cache salt, and the like."""
MAX_REQUEST_ID: Final = 128
"""Characters of a request id; a longer one is replaced."""
MAX_DETOKENIZE_TOKENS: Final = 2**20
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
INT32_MIN: Final = -(2**31)
INT32_MAX: Final = 2**31 - 1
