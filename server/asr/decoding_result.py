"""The transcript of one window: decoded again at higher temperatures until it is good enough, or silence."""

import msgspec

from stentor.protocols.ipc.audio import PromptProbe

from .model import TranscriptionModel
from .options import MAX_PROMPT_TOKENS, TranscriptionOptions
from .segments import compression_ratio
from .window_decoder import DecodingOptions, EngineOutput, Window, WindowDecoder

_CONTEXT_TOKENS = 448
"""Most tokens of prompt and transcript, unless the engine has fewer."""
_LEAST_TOKENS = 32
"""Tokens for the marks of a prompt and the output."""


class WindowTask(msgspec.Struct, frozen=True):
    """A window to transcribe, with what transcribes it."""

    decoder: WindowDecoder
    model: TranscriptionModel
    window: Window
    options: TranscriptionOptions
    language: str | None
    """A code of the model's; None where it knows only one."""


class DecodingResult(msgspec.Struct):
    """One decoding of a window, and the measures by which it is judged."""

    answer: EngineOutput
    temperature: float
    text: str
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float

    @property
    def tokens(self) -> list[int]:
        return self.answer.tokens


def prompt_for(
    model: TranscriptionModel,
    options: TranscriptionOptions,
    language: str | None,
    previous: list[int],
    continued: list[int],
) -> tuple[list[int], int]:
    """The prompt of a window, and the position of the transcript's start in it."""
    vocabulary, context = model.vocabulary, context_tokens(model)
    continued = continued[-(context - _LEAST_TOKENS) :]
    most = min(MAX_PROMPT_TOKENS, context // 2 - 1, context - _LEAST_TOKENS - len(continued))
    prompt = vocabulary.context(previous, most)
    start = len(prompt)
    prompt += vocabulary.beginning(
        language, options.task, timestamps=options.timestamps, written=options.written_language
    )
    return prompt + continued, start


async def draft_window(task: WindowTask, previous: list[int], continued: list[int] | None = None) -> DecodingResult:
    """The first result that is good enough, or the likeliest if none is. ``previous``: tokens of the transcript before
    the window.

    With ``continued`` the transcript goes on after those tokens, and they are no part of it.
    """
    model, options = task.model, task.options
    drafts: list[DecodingResult] = []
    vocabulary = model.vocabulary
    prompt, start = prompt_for(model, options, task.language, previous, continued or [])
    rules = vocabulary.rules(timestamps=options.timestamps, continued=bool(continued))
    room = min(context_tokens(model) - len(prompt), vocabulary.most_tokens(task.window.seconds))
    most = max(1, min(options.max_tokens, room))
    probe = None if vocabulary.no_speech is None else PromptProbe(no_speech=(start, vocabulary.no_speech))
    for temperature in options.temperatures:
        beams = None if temperature else options.beams
        wanted = DecodingOptions(vocabulary.eot, most, temperature, rules, sampling=options.sampling, beams=beams)
        answer = await task.decoder.decode(task.window, prompt, wanted, probe)
        draft = _judged(model, answer, temperature)
        drafts.append(draft)
        if _passes(draft, options):
            return draft
    repetitive = options.compression_ratio_threshold
    least = [draft for draft in drafts if draft.compression_ratio <= repetitive] or drafts
    best = max(least, key=lambda draft: draft.avg_logprob)
    # all have failed: the last temperature marks it as no context for the next window
    return msgspec.structs.replace(best, temperature=options.temperatures[-1])


def context_tokens(model: TranscriptionModel) -> int:
    """Tokens of prompt and transcript together."""
    ready = model.client.ready
    return _CONTEXT_TOKENS if ready is None else min(_CONTEXT_TOKENS, ready.max_model_len)


def _judged(model: TranscriptionModel, answer: EngineOutput, temperature: float) -> DecodingResult:
    text = model.vocabulary.decode(answer.tokens).strip()
    return DecodingResult(
        answer,
        temperature,
        text,
        answer.sum_logprob / (len(answer.tokens) + 1),
        compression_ratio(text),
        answer.alignment.no_speech or 0.0,
    )


def _passes(draft: DecodingResult, options: TranscriptionOptions) -> bool:
    unlikely = draft.avg_logprob < options.logprob_threshold
    if unlikely and draft.no_speech_prob > options.no_speech_threshold:
        return True  # silence: another temperature would only invent words
    return not unlikely and draft.compression_ratio <= options.compression_ratio_threshold


def is_silence(draft: DecodingResult, options: TranscriptionOptions) -> bool:
    """Whether the window has no speech, even if the transcript has text."""
    return draft.no_speech_prob > options.no_speech_threshold and draft.avg_logprob <= options.logprob_threshold
