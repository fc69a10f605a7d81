"""Mistral's own tokenizers and conversations, by the library of their makers (extra ``mistral``)."""

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import TemplateError
from ..pool import TokenizerPool
from ..templates.placeholders import MediaText
from .interface import RenderRequest
from .plain import refuse_template

if TYPE_CHECKING:
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

FILES: Final = ("tekken.json", "tokenizer.model.v*", "*.model.v*", "tokenizer.model")
"""Files of a tokenizer of this kind; the first that exists is used."""
_MESSAGE_CHARS: Final = 300
_AUDIO: Final = "audio"
_IMAGE: Final = "image"
_KNOWN: Final = ("role", "content", "tool_calls", "tool_call_id", "name", "prefix")


class RendererError(Exception):
    """A renderer cannot be had; one line for the operator."""


class MistralRenderer:
    def __init__(self, pool: TokenizerPool, file: Path) -> None:
        """Raises :class:`RendererError`."""
        self._pool = pool
        self._tokenizer = _load(file)
        instruct: Any = self._tokenizer.instruct_tokenizer
        if (encoder := getattr(instruct, "audio_encoder", None)) is not None:
            instruct.audio_encoder = _CountedAudio(encoder.special_ids.begin_audio, encoder.special_ids.audio)
        if (seen := getattr(instruct, "image_encoder", None)) is not None:
            instruct.image_encoder = _WrittenImage(seen.special_ids)
        self._thinks = getattr(self._tokenizer.instruct_tokenizer, "BEGIN_THINK", None) is not None
        """Only tokenizers of models that reason can write it."""
        ours, theirs = pool.tokenizer.vocab_size, self._tokenizer.instruct_tokenizer.tokenizer.n_words
        if theirs > ours:
            raise RendererError(f"{file.name} has {theirs} tokens, but the model's tokenizer has {ours}")

    def takes_tools(self, chat_template: str | None) -> bool:
        return True

    async def render(self, conversation: RenderRequest) -> list[int]:
        refuse_template(conversation, "mistral", (_AUDIO, _IMAGE))
        return await self._pool.run(functools.partial(self._write, conversation))

    def _write(self, conversation: RenderRequest) -> list[int]:
        from mistral_common.exceptions import MistralCommonException
        from mistral_common.protocol.instruct.request import ChatCompletionRequest

        messages = [_message(message, self._thinks) for message in conversation.messages]
        try:
            request = ChatCompletionRequest.from_openai(
                messages=[_without_media(message) for message in messages],
                tools=[dict(tool) for tool in conversation.tools] or None,
                continue_final_message=conversation.continue_final_message,
            )
            if conversation.media is not None:
                _put_media(request, messages, conversation.media)
            tokens: list[int] = self._tokenizer.encode_chat_completion(request).tokens
        except (MistralCommonException, AssertionError, ValueError, KeyError, TypeError) as error:
            line = " ".join(str(error).split())[:_MESSAGE_CHARS]
            why = line or type(error).__name__
            raise TemplateError(f"Mistral's renderer refused the conversation: {why}") from error
        return tokens


class _CountedAudio:
    """Writes placeholder tokens for audio: their number stands in place of its data, which is encoded elsewhere."""

    def __init__(self, begin: int, audio: int) -> None:
        self._begin, self._audio = begin, audio

    def __call__(self, content: Any) -> Any:
        from mistral_common.tokens.tokenizers.audio import AudioEncoding

        tokens = [self._begin, *[self._audio] * int(content.input_audio.data)]
        return AudioEncoding(tokens, None)  # type: ignore[arg-type]  # it has no samples, which nobody asks for


class _WrittenImage:
    """Writes the tokens of a picture, whose text stands in place of its address."""

    def __init__(self, ids: Any) -> None:
        self._ids = {"[IMG]": ids.img, "[IMG_BREAK]": ids.img_break, "[IMG_END]": ids.img_end}

    def __call__(self, content: Any) -> Any:
        import numpy as np  # which the library needs
        from mistral_common.tokens.tokenizers.image import ImageEncoding

        tokens = [self._ids[each] for each in re.findall(r"\[IMG(?:_BREAK|_END)?\]", content.image_url)]
        return ImageEncoding(tokens, np.empty(0))  # nobody asks for its pixels


def _put_media(request: Any, messages: Sequence[Mapping[str, Any]], media: MediaText) -> None:
    """Renders each sound of a request as a text with the number of its tokens, and each picture as the text of its
    tokens; mutates :attr:`..templates.placeholders.MediaText.order`."""
    from mistral_common.protocol.instruct.chunk import AudioChunk, ImageURLChunk, RawAudio

    following = {modality: iter(media.texts(modality)) for modality in (_AUDIO, _IMAGE)}
    written = media.written.get(_AUDIO, "")
    media.order = []
    for message, read in zip(messages, request.messages, strict=True):
        for place, kind in enumerate(_kinds(message)):
            if kind not in following:
                continue
            media.order.append(kind)
            text = next(following[kind])
            if kind == _IMAGE:
                read.content[place] = ImageURLChunk.model_construct(image_url=text)
            else:
                # the library supports sounds only with another library that decodes them
                data = RawAudio.model_construct(data=str(text.count(written)), format="wav")
                read.content[place] = AudioChunk.model_construct(input_audio=data)


def _kinds(message: Mapping[str, Any]) -> list[str]:
    content = message.get("content")
    return [part.get("type", "") for part in content] if isinstance(content, list) else []


def _without_media(message: dict[str, Any]) -> dict[str, Any]:
    """With a text in place of each sound and picture."""
    if not {_AUDIO, _IMAGE} & {*_kinds(message)}:
        return message
    return {
        **message,
        "content": [
            {"type": "text", "text": kind} if (kind := part.get("type")) in (_AUDIO, _IMAGE) else part
            for part in message["content"]
        ],
    }


def find_file(folder: Path) -> Path | None:
    """The tokenizer file of this kind in a model's folder."""
    for pattern in FILES:
        for found in sorted(folder.glob(pattern)):
            return found
    return None


def _load(file: Path) -> "MistralTokenizer[Any, Any, Any, Any, Any]":
    try:
        from mistral_common.exceptions import MistralCommonException
        from mistral_common.protocol.instruct.validator import ValidationMode
        from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
    except ImportError as error:
        raise RendererError("the mistral renderer needs mistral-common: pip install 'stentor[mistral]'") from error
    try:
        # requests may contain answers to be continued, which the strict modes refuse
        return MistralTokenizer.from_file(str(file), mode=ValidationMode.test)
    except (MistralCommonException, AssertionError, ValueError, KeyError, OSError) as error:
        raise RendererError(f"{file.name} is no tokenizer of Mistral's: {' '.join(str(error).split())}") from error


def _message(message: Mapping[str, Any], thinks: bool) -> dict[str, Any]:
    """The fields of a message that the library knows; it refuses others."""
    ready = {name: message[name] for name in _KNOWN if message.get(name) is not None}
    if ready.get("role") == "developer":
        ready["role"] = "system"
    thought = message.get("reasoning_content") or message.get("reasoning")
    if thinks and thought and ready.get("role") == "assistant":
        content = ready.get("content") or []
        said = [{"type": "text", "text": content}] if isinstance(content, str) else content
        ready["content"] = [{"type": "thinking", "thinking": thought}, *said]
    return ready
