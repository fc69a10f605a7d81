"""Tokenizing off the event loop: an async front over a few threads."""

import asyncio
import contextlib
import logging
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar, Unpack

from stentor.protocols.common.errors import BadRequest

from ..common.errors import Overloaded, Unavailable
from ..common.fair_queue import FairSemaphore, QueueFull, current_owner
from ..config.limits import DEFAULT_CHARS, DEFAULT_SECONDS, DEFAULT_WAITING
from ..sandbox.killable_child import ChildNotStarted, Starved
from .errors import TemplatesWait, TextTooLong
from .templates.chat_template import ChatTemplate, RenderOptions
from .templates.placeholders import MediaText
from .templates.template_process import RenderJob, TemplateProcess
from .tokenizers.detokenizer import Detokenizers
from .tokenizers.tokenizer import Marked, Tokenizer

T = TypeVar("T")

logger = logging.getLogger(__name__)

INLINE_CHARS: Final = 200
"""Shorter texts are encoded where they are: that takes less time than a hop to a thread and back."""
_RETRY_SECONDS: Final = 2


ENCODING_BYTES: Final = 256
"""Memory for a token while its text is encoded: in the library, with its text and position, and in our list. Words that
occurred before take about 70."""
DEFAULT_ENCODING_BYTES: Final = 1 << 29
"""Default limit for all texts that are encoded at the same time."""


def _as_it_is(text: str) -> str:
    return text


class TokenizationBudget:
    """Memory for texts that are being encoded. For threads: each waits until there is room for its texts."""

    def __init__(self, most: int = DEFAULT_ENCODING_BYTES) -> None:
        """``most`` in bytes."""
        self._most = most
        self._changed = threading.Condition()
        self.held = 0

    @contextlib.contextmanager
    def hold(self, tokenizer: Tokenizer, texts: Sequence[str], field: str) -> Iterator[None]:
        """Counts the memory of ``texts`` while the block encodes them. Raises BadRequest (413) if they never fit."""
        size = ENCODING_BYTES * sum(len(text) if text.isascii() else len(text.encode()) for text in texts)
        if size > self._most:  # if each byte were a token; so they are counted piece by piece
            tokens = sum(map(tokenizer.count_in_pieces, texts))
            size = ENCODING_BYTES * tokens
            if size > self._most:
                most = self._most // ENCODING_BYTES
                raise BadRequest(
                    f"`{field}` has some {tokens} tokens; there is memory to tokenize {most} at a time. Send less.",
                    field,
                    "request_too_large",
                    413,
                )
        with self._changed:
            self._changed.wait_for(lambda: self.held + size <= self._most)
            self.held += size
        try:
            yield
        finally:
            with self._changed:
                self.held -= size
                self._changed.notify_all()


class TokenizerPool:
    """A model's tokenizer and chat template, for the event loop.

    The tokenizer releases the interpreter's lock while it works, so threads are enough. ``max_pending`` jobs are in the
    pool at a time; further callers wait, and a job whose caller has gone is skipped if it has not begun.

    Templates of requests are rendered one at a time, separately, and ``max_foreign`` of them wait; owners take turns.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        threads: int = 2,
        max_pending: int = 256,
        max_foreign: int = DEFAULT_WAITING,
        render_seconds: float = DEFAULT_SECONDS,
        render_chars: int = DEFAULT_CHARS,
        room: TokenizationBudget | None = None,
    ) -> None:
        """``room`` is shared with other pools."""
        self.tokenizer: Final = tokenizer
        self.detokenizers: Final = Detokenizers(tokenizer)
        self.chat_template: Final = ChatTemplate(
            tokenizer.chat_template, tokenizer.special_tokens, max_seconds=render_seconds, max_chars=render_chars
        )
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="tokenizer")
        # a separate thread: it waits for its process, and other work must not wait with it
        self._foreign = TemplateProcess(tokenizer.special_tokens, render_seconds, render_chars)
        self._foreign_executor = ThreadPoolExecutor(1, thread_name_prefix="template")
        self._foreign_turns = FairSemaphore(1, max_foreign)
        self._max_foreign = max_foreign
        self._places = asyncio.Semaphore(max_pending)
        self.room: Final = room or TokenizationBudget()

    async def encode(
        self, text: str, add_special_tokens: bool = True, *, most_tokens: int | None = None, field: str = "prompt"
    ) -> list[int]:
        """Token ids of a text in ``field`` of a request.

        A text that must have more than ``most_tokens`` tokens may be refused before it is encoded, by
        :class:`~.errors.TextTooLong`. One that is not refused can still have more. Raises BadRequest (413) if there is
        no memory for it.
        """
        if len(text) <= INLINE_CHARS:
            return self.tokenizer.encode(text, add_special_tokens)
        return await self.run(lambda: self._encode(text, add_special_tokens, most_tokens, field))

    async def encode_packed(self, text: str, add_special_tokens: bool = True, *, field: str = "prompt") -> "array[int]":
        """The tokens of a text in 4 bytes each, for results that are stored for a while. Raises as :meth:`encode`."""
        return await self.run(lambda: self._encode_packed(text, add_special_tokens, field))

    async def encode_batch(
        self,
        texts: Sequence[str],
        add_special_tokens: bool = True,
        *,
        most_tokens: int | None = None,
        field: str = "prompt",
    ) -> list[list[int]]:
        """Token ids of each text; ``most_tokens`` as in :meth:`encode`, for each, and the errors of it."""
        if sum(map(len, texts)) <= INLINE_CHARS:
            return [self.tokenizer.encode(text, add_special_tokens) for text in texts]
        for text in texts:
            self._check_length(text, most_tokens)
        return await self.run(lambda: self._encode_all(texts, add_special_tokens, field))

    async def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True
    ) -> str:
        """The text of token ids."""
        return await self.run(lambda: self.tokenizer.decode(ids, skip_special_tokens, spaces_between_special_tokens))

    async def offsets(
        self,
        text: str,
        ids: Sequence[int],
        add_special_tokens: bool,
        *,
        from_end: bool = False,
        field: str = "prompt",
    ) -> list[tuple[int, int]] | None:
        """Where in ``text`` each token is from: see :meth:`.Tokenizer.offsets`. Raises as :meth:`encode`."""

        def find() -> list[tuple[int, int]] | None:
            with self.room.hold(self.tokenizer, [text], field):
                return self.tokenizer.offsets(text, ids, add_special_tokens, from_end=from_end)

        return await self.run(find)

    async def token_texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each single token."""
        return await self.run(lambda: [self.tokenizer.token_to_text(id) for id in ids])

    async def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        chat_template: str | None = None,
        add_special_tokens: bool = False,
        most_tokens: int | None = None,
        media: MediaText | None = None,
        **options: Unpack[RenderOptions],
    ) -> list[int]:
        """Token ids of a conversation, rendered by the chat template.

        ``chat_template`` is the name of one of the model's templates, or a template itself, which is then rendered in
        another process. With ``add_special_tokens`` a BOS that the template has written is not added again. ``media``
        are placed at the template's placeholders. ``most_tokens`` as in :meth:`encode`. Raises
        :class:`~.errors.TemplateError`, and :class:`~.errors.TemplatesWait` if too many templates of requests wait;
        Overloaded and Unavailable if the process that renders them has no CPU time, or cannot be started.
        """
        expand = _as_it_is
        if media is not None:
            options, expand = {**options, "written": media.written}, media.expand
        if chat_template is None or self.chat_template.has(chat_template):
            render = partial(self.chat_template.render, messages, chat_template=chat_template, **options)
            return await self.run(lambda: self._encode_chat(expand(render()), add_special_tokens, most_tokens))
        text = await self._render_foreign(RenderJob(messages, chat_template, options))
        return await self.run(lambda: self._encode_chat(expand(text), add_special_tokens, most_tokens))

    async def encode_rendered(self, render: Callable[[], str | list[str]], most_tokens: int | None = None) -> list[int]:
        """Token ids of the text of ``render``, all markers included, or of pieces, as of
        :meth:`.Tokenizer.encode_pieces`; ``most_tokens`` as in :meth:`encode`."""
        return await self.run(lambda: self._encode_pieces(render(), most_tokens))

    async def run(self, job: Callable[[], T]) -> T:
        """Runs a job among the others, in a thread."""
        await self._places.acquire()
        return await self._submit(job, self._executor, self._places.release)

    async def _render_foreign(self, job: RenderJob) -> str:
        owner = current_owner.get()
        try:
            await self._foreign_turns.acquire(owner)
        except QueueFull:
            raise TemplatesWait(self._max_foreign) from None
        release = partial(self._foreign_turns.release, owner)
        try:
            return await self._submit(lambda: self._foreign.render(job), self._foreign_executor, release)
        except Starved:
            said = "The machine is too busy to render a chat template; try again shortly."
            raise Overloaded(said, "templates_full", _RETRY_SECONDS) from None
        except ChildNotStarted as error:
            logger.error("the template process cannot be started: %s", error)
            said = "Chat templates cannot be rendered just now; the log of the server says why."
            raise Unavailable(said, "templates_unavailable") from None

    def _encode_chat(self, text: str, add_special_tokens: bool, most_tokens: int | None) -> list[int]:
        bos = self.tokenizer.bos_token
        return self._encode(text, add_special_tokens and not (bos and text.startswith(bos)), most_tokens)

    def _encode(
        self, text: str, add_special_tokens: bool, most_tokens: int | None, field: str = "messages"
    ) -> list[int]:
        self._check_length(text, most_tokens)
        return self._encode_all([text], add_special_tokens, field)[0]

    def _encode_pieces(self, rendered: str | list[str], most_tokens: int | None) -> list[int]:
        pieces = [Marked(rendered)] if isinstance(rendered, str) else rendered
        self._check_length("".join(pieces), most_tokens)
        with self.room.hold(self.tokenizer, pieces, "messages"):
            return self.tokenizer.encode_pieces(pieces)

    def _encode_packed(self, text: str, add_special_tokens: bool, field: str) -> "array[int]":
        with self.room.hold(self.tokenizer, [text], field):
            return array("I", self.tokenizer.encode(text, add_special_tokens))

    def _encode_all(self, texts: Sequence[str], add_special_tokens: bool, field: str) -> list[list[int]]:
        with self.room.hold(self.tokenizer, texts, field):
            return self.tokenizer.encode_batch(texts, add_special_tokens)

    def _check_length(self, text: str, most_tokens: int | None) -> None:
        if most_tokens is None or len(text) <= most_tokens:
            return
        fewest = self.tokenizer.fewest_tokens(text)
        if fewest > most_tokens:
            raise TextTooLong(fewest)

    async def _submit(self, job: Callable[[], T], executor: ThreadPoolExecutor, release: Callable[[], None]) -> T:
        """``release`` gives back the place that the job takes."""
        loop = asyncio.get_running_loop()
        held = [job]  # the executor keeps its arguments until a thread takes them, even if no caller waits
        try:
            future = executor.submit(lambda: held[0]())
        except BaseException:
            release()
            raise

        def done(_: object) -> None:
            held.clear()
            with contextlib.suppress(RuntimeError):  # the loop has closed, and so have all callers
                loop.call_soon_threadsafe(release)

        # the place is taken until the job has really ended, whether or not its caller still waits
        future.add_done_callback(done)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Skips jobs that have not begun and lets the threads end."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._foreign_executor.submit(self._foreign.close)
        self._foreign_executor.shutdown(wait=False)
