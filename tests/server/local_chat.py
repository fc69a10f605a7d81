"""A chat server over a tiny model, whole but for its processes: tokenizer, grammars, scheduler and worker."""

import asyncio
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from stentor.engine.client.journal import Journal
from stentor.engine.client.request import EngineRequest
from stentor.engine.client.stream import RequestStream
from stentor.engine.core.grammar.constraint import TokenConstraint, is_constrained
from stentor.engine.core.grammar.structured_output import StructuredOutputManager
from stentor.engine.core.loop import engine_ready
from stentor.protocols.ipc.actors import EngineReady, Resumed, Stats, Submit, TokensBatch
from stentor.server.app.state import ServerState
from stentor.server.parsing.output import settle_output
from stentor.server.text.pool import TokenizerPool
from stentor.server.text.tokenizers.grammar_tokens import vocabulary_of
from stentor.server.text.tokenizers.pieces import byte_alphabet
from stentor.server.text.tokenizers.tokenizer import Tokenizer
from stentor.tests.engine.local import LocalEngine, model_config, never
from stentor.tests.fakes import EOS, fake_state
from stentor.tests.parity import tiny

TEMPLATE: Final = (
    "{% if tools %}{% for tool in tools %}{{ tool.function.name }} {% endfor %}<tool_call>{{ '\n' }}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
    "{% if enable_thinking is defined and enable_thinking %}{{ '<think>' }}{% endif %}"
)
MARKERS: Final = ("<think>", "</think>", "<tool_call>", "</tool_call>")
WORDS: Final = (
    *("the ", "cat ", "and ", "an", "no", "on ", "in", "to ", "a b", "b c", "ca", "is", "it.", ".\n", "\n\n", "Hi"),
    *(
        '{"',
        '"}',
        '":',
        '": ',
        '", "',
        "name",
        "arguments",
        "one",
        "two",
        '{"name": "',
        '", "arguments": {',
        "}}",
        "12",
    ),
    *("[", "]", "é", "—", "é é", "x", "😀"),
)
WORD: Final = {word: EOS + 1 + len(MARKERS) + place for place, word in enumerate(WORDS)}
"""Tokens of several bytes: their ids follow those of bytes, ``<s>``, ``</s>`` and the markers."""


@cache
def word_tokenizer() -> Tokenizer:
    """That of :mod:`stentor.tests.fakes` with markers and words, as many tokens as tiny models have. It encodes to
    bytes and markers; a model may draw words."""
    spelled = byte_alphabet()
    vocab = {char: byte for byte, char in spelled.items()} | {"<s>": EOS - 1, "</s>": EOS}
    vocab |= {marker: EOS + 1 + place for place, marker in enumerate(MARKERS)}
    vocab |= {"".join(spelled[byte] for byte in word.encode()): id for word, id in WORD.items() if len(word) > 1}
    vocab |= {f"Ġ{number}": number for number in range(len(vocab), tiny.VOCAB)}
    return _tokenizer(vocab)


def _tokenizer(vocab: dict[str, int]) -> Tokenizer:
    backend = Backend(BPE(vocab, []))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = ByteLevelDecoder()
    backend.add_special_tokens([AddedToken(each, special=True) for each in ("<s>", "</s>", *MARKERS)])
    return Tokenizer(backend, {"bos_token": "<s>", "eos_token": "</s>"}, TEMPLATE)


_CACHE: Final = 2 << 20
"""Few blocks, for all of them are checked after each step."""


class _Engine(LocalEngine):
    """Hands each sequence's events to the stream of its request, too."""

    journal: Journal

    def restart(self, *arguments: Any, **sizes: Any) -> None:
        self.journal = Journal()
        super().restart(*arguments, **sizes)

    def _take(self, batch: TokensBatch) -> None:
        super()._take(batch)
        self.journal.deliver(batch)


class LocalChat:
    """Takes the place of the engine client. Steps run in the event loop; readers see what every ``burst`` of them
    have brought."""

    def __init__(self, folder: Path, **changes: object) -> None:
        self.engine = _Engine(model_config(folder, batch_invariant=True, kv_cache_memory=_CACHE, **changes))
        self.ready: EngineReady | None = engine_ready(self.engine.ready)
        self.failure = self.stalled = None
        self.controls = None  # nobody pauses it
        self.engine_restarts = 0
        self.stats = Stats(0, 0, 0.0, 0, 0, 0, 0, 0)
        self.burst = 1
        self.dies: Callable[[], bool] = never
        """Whether the worker is lost before a step."""
        self.prompts: dict[int, list[int]] = {}
        self.grammars = StructuredOutputManager()
        for piece in vocabulary_of(word_tokenizer(), (EOS,)):
            self.grammars.take(piece)
        self._running: asyncio.Task[None] | None = None

    def state(self) -> ServerState:
        pool = TokenizerPool(word_tokenizer())
        output = settle_output("qwen3", "hermes", TEMPLATE, "")
        client: Any = self
        return fake_state(client, pool=pool, output=output, vocab_size=tiny.VOCAB)

    @property
    def texts(self) -> list[list[int]]:
        """Prompt and tokens of each sequence since the last restart of the engine."""
        return [self.prompts[rid] + outcome.tokens for (rid, _), outcome in self.engine.outcomes.items()]

    def submit(self, request: EngineRequest) -> RequestStream:
        prompt, params, seeds, salt = request.prompt, request.params, request.seeds, request.salt
        submit = Submit(
            0,
            prompt,
            params,
            seeds,
            request.priority,
            salt,
            0.0,
            name=request.name,
            grammar=request.grammar,
            thinking=request.thinking,
            resumed=None if request.resumed is None else Resumed(request.resumed, [], prompt_done=False),
        )
        constraints: list[TokenConstraint | None] | None = None
        if is_constrained(submit):
            constraints = self.grammars.constraints_of(submit).sequences
        rid = self.engine.submit(
            prompt,
            params,
            seeds,
            salt=salt,
            constraints=constraints,
            resumed=submit.resumed,
            priority=request.priority,
        )
        self.prompts[rid] = prompt
        stream = RequestStream(msgspec.structs.replace(submit, rid=rid), self._abort)
        self.engine.journal.add(stream)
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        return stream

    def _abort(self, stream: RequestStream, index: int) -> None:
        ended = self.engine.scheduler.abort(stream.rid, index)
        if ended is not None:
            self.engine._take(ended)
            self.engine.journal.wake_readers()

    async def _run(self) -> None:
        try:
            while self._turns():
                await asyncio.sleep(0)
        except Exception as error:
            for stream in [*self.engine.journal]:
                stream.end("error", repr(error))
            raise

    def _turns(self) -> bool:
        goes_on = all(self.engine.turn(self.dies) for _ in range(self.burst))
        self.engine.scheduler.check_integrity()
        self.engine.journal.wake_readers()
        return goes_on
