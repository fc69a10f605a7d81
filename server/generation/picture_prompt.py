"""The prompt of a model that writes about one picture: a text that its encoder reads behind the picture, or one that
begins its output."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from stentor.engine.model_config.seq2seq.pictured import FLORENCE
from stentor.engine.model_config.seq2seq.text import TextToTextConfig
from stentor.protocols.common.errors import BadRequest, refused
from stentor.protocols.openai.chat import ChatRequest
from stentor.protocols.openai.tools import ToolUse

from ..text.pool import TokenizerPool

_FLORENCE_TASKS: Final[Mapping[str, str]] = {
    "<OCR>": "What is the text in the image?",
    "<OCR_WITH_REGION>": "What is the text in the image, with regions?",
    "<CAPTION>": "What does the image describe?",
    "<DETAILED_CAPTION>": "Describe in detail what is shown in the image.",
    "<MORE_DETAILED_CAPTION>": "Describe with a paragraph what is shown in the image.",
    "<OD>": "Locate the objects with category name in the image.",
    "<DENSE_REGION_CAPTION>": "Locate the objects in the image, with their descriptions.",
    "<REGION_PROPOSAL>": "Locate the region proposals in the image.",
    "<CAPTION_TO_PHRASE_GROUNDING>": "Locate the phrases in the caption: {input}",
    "<REFERRING_EXPRESSION_SEGMENTATION>": "Locate {input} in the image with mask",
    "<REGION_TO_SEGMENTATION>": "What is the polygon mask of region {input}",
    "<OPEN_VOCABULARY_DETECTION>": "Locate {input} in the image.",
    "<REGION_TO_CATEGORY>": "What is the region {input}?",
    "<REGION_TO_DESCRIPTION>": "What does the region {input} describe?",
    "<REGION_TO_OCR>": "What text is in the region {input}?",
}
"""What Florence-2 was trained to be asked, by the name of a task, before an input where there is one."""
_INPUT: Final = "{input}"


class PicturePrompt(msgspec.Struct, frozen=True):
    """How such a model is asked."""

    start: tuple[int, ...] = ()
    """Tokens with which an output begins, unless the prompt's text begins with a special token; empty if the encoder
    reads the text."""
    longest_text: int = 0
    """Most tokens of a text that the encoder reads; 0 if texts begin the output."""
    tasks: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Texts by the names that stand for them."""

    @classmethod
    def of(cls, config: TextToTextConfig) -> "PicturePrompt | None":
        """None for a model that reads texts alone."""
        if config.pictures is None:
            return None
        if config.longest_text:
            tasks = _FLORENCE_TASKS if config.architecture == FLORENCE else {}
            return cls(longest_text=config.longest_text, tasks=tasks)
        return cls(config.decoder_start)

    async def tokens(
        self, pool: TokenizerPool, body: ChatRequest, messages: Sequence[Mapping[str, Any]], use: ToolUse
    ) -> list[int]:
        """The prompt of ``messages``, of which :func:`..media.collect.collect_media` has taken the picture. Raises
        BadRequest for a conversation that is not one message with a picture."""
        if use.tools:
            raise refused("tools", "the model writes about a picture and calls nothing; leave them out", "unsupported")
        if body.truncate_prompt_tokens is not None:
            raise refused("truncate_prompt_tokens", "the model's prompt is not cut; leave it out", "unsupported")
        text = self.asked(_text_of(messages))
        found = await pool.encode(text, bool(self.longest_text), field="messages")
        if not self.longest_text:
            begun = found and found[0] in pool.tokenizer.special_ids
            return found if begun else [*self.start, *found]
        if len(found) > self.longest_text:
            raise BadRequest(
                f"`messages`: the text has {len(found)} tokens, and the model reads at most {self.longest_text} behind "
                "a picture. Shorten it.",
                "messages",
                "context_length_exceeded",
                lengths=(len(found), self.longest_text),
            )
        return found

    def asked(self, text: str) -> str:
        """What a text that may name a task asks. Raises BadRequest for an input of a task without one."""
        name = next((name for name in self.tasks if text.strip().startswith(name)), None)
        if name is None:
            return text
        task, given = self.tasks[name], text.strip().removeprefix(name).strip()
        if given and _INPUT not in task:
            raise refused("messages", f"{name} takes no text behind it; leave that out", "invalid_value")
        return task.replace(_INPUT, given)


def _text_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """The text of the one message, besides its picture."""
    if len(messages) != 1 or messages[0].get("role") != "user":
        raise refused("messages", "the model takes one message, of the user, with one picture", "unsupported")
    content = messages[0].get("content")
    parts = content if isinstance(content, list) else []
    if not any(part.get("type") == "image" for part in parts):
        raise refused("messages[0].content", "the model writes about a picture; send one", "invalid_value")
    return "".join(part["text"] for part in parts if isinstance(part.get("text"), str))
