"""Engine processes that do what a test says, die when it says, and go on with what another has left.

What a sequence yields follows from its prompt, seed and place alone, so whoever goes on must know exactly what was
delivered: an engine that is told anything else fails its test.
"""

import asyncio
from collections.abc import Callable
from hashlib import blake2b

from stentor.engine.channel import PeerDied
from stentor.engine.channel.arena import Arena
from stentor.engine.channel.pieces import ResumedParts
from stentor.engine.processes.launch import EngineProcess
from stentor.protocols.ipc.actors import (
    Abort,
    ClientInbox,
    Control,
    ControlDone,
    EngineReady,
    Failed,
    Finished,
    FinishReason,
    Ping,
    PromptDone,
    PromptPart,
    ResumedPart,
    SequenceTokens,
    Shutdown,
    Stalled,
    Stats,
    Submit,
    TokensBatch,
    Vocabulary,
)
from stentor.protocols.ipc.adapters import WarmAdapter
from stentor.protocols.ipc.codec import decode_engine, encoder
from stentor.protocols.ipc.config import EngineConfig
from stentor.protocols.ipc.steps import TokenLogprobs

NONSENSE = b"\xc1 no message"


def _hash(*parts: object) -> int:
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=6).digest(), "little")


def expected(submit: Submit, index: int) -> tuple[list[int], FinishReason]:
    """All tokens of a sequence that nobody aborts, and how it ends."""
    key = (submit.prompt, submit.seeds[index])
    natural = 5 + _hash("length", key) % 8
    count = min(natural, submit.params.max_tokens)
    return [_hash(key, place) % 1000 for place in range(count)], "stop" if natural <= count else "length"


def logprobs_of(tokens: list[int]) -> list[TokenLogprobs]:
    return [TokenLogprobs(token, -float(token), 1, []) for token in tokens]


class _Request:
    """What an engine keeps of one, checked against what it must have been told."""

    def __init__(self, submit: Submit) -> None:
        self.submit = submit
        resumed = submit.resumed
        self.prompt_done = resumed is not None and resumed.prompt_done
        self.given: dict[int, int] = {}
        for index in range(len(submit.seeds)):
            tokens, _ = expected(submit, index)
            outputs = [] if resumed is None else resumed.outputs[index]
            if resumed is not None and index in resumed.ended:
                assert outputs == [], "tokens of a sequence that has ended"
                continue
            assert outputs == tokens[: len(outputs)], "other tokens than were sent"
            assert len(outputs) < len(tokens), "all tokens, and yet no end"
            assert self.prompt_done or not outputs, "tokens before the prompt was done"
            self.given[index] = len(outputs)
        assert self.given, "nothing is left of this request"


class ScriptedEngine:
    """The engine's process and both ends of the channel to it, as far as a client uses them."""

    def __init__(self) -> None:
        self.requests: dict[int, _Request] = {}
        self.vocabulary: list[Vocabulary] = []
        self.vocabulary_tokens = 0
        """Tokens of the vocabulary that had come when the last request with a grammar did."""
        self.any_order = False
        """Whether requests may come in another order than they have arrived in."""
        self.had: set[int] | None = None
        """The requests that it had when it died."""
        self.dead = False
        self.closed = False
        self.pid = 0
        self.cpu_seconds = 0.0
        self.description = "running"
        self.undying = False
        """Whether a kill does nothing."""
        self.given_up = asyncio.Event()
        """Set by the test: an undying one has been waited for long enough."""
        self.paused = False
        self.controls: list[str] = []
        self.refuses_weights = ""
        """Why it cannot load others."""
        self._inbox: list[bytes] = []
        self._outbox: list[bytes] = []
        self._changed = asyncio.Event()
        self._last_rid = -1
        self._resumed = ResumedParts()

    # ---- for the test

    def send_message(self, message: ClientInbox) -> None:
        self.send_frame(encoder.encode(message))

    def send_frame(self, frame: bytes) -> None:
        if not self.dead:
            self._outbox.append(frame)
            self._changed.set()

    def get_ready(self) -> None:
        self.send_message(EngineReady(64, 16, 2048, [], [], max_num_seqs=8))

    def stall(self) -> None:
        self.send_message(Stalled("the worker process was lost: killed by SIGKILL"))

    def fail(self, *, final: bool) -> None:
        self.send_message(Failed("the engine failed: KeyError: 7", final))

    def die(self) -> None:
        """What it has sent stays; what it has not read is lost."""
        if self.had is None:
            unread = (decode_engine.decode(frame) for frame in self._inbox)
            self.had = {*self.requests, *(each.rid for each in unread if isinstance(each, Submit))}
        self.dead = True
        self.description = "killed by SIGKILL"
        self._changed.set()

    def read(self) -> None:
        """Takes in what has come since the last time."""
        frames, self._inbox = self._inbox, []
        batch = TokensBatch([], [], [])
        for frame in frames:
            match decode_engine.decode(frame):
                case ResumedPart() as part:
                    self._resumed.add(part)
                case Submit() as submit:
                    submit = self._resumed.joined(submit)
                    assert self.any_order or submit.rid > self._last_rid, "not in order of arrival"
                    assert submit.rid not in self.requests, "submitted twice"
                    self._last_rid = submit.rid
                    if submit.grammar or submit.thinking is not None:
                        self.vocabulary_tokens = sum(len(piece.tokens) for piece in self.vocabulary)
                    self.requests[submit.rid] = _Request(submit)
                case Abort(rid=rid, index=index):
                    self._abort(rid, index, batch)
                case Vocabulary() as piece:
                    self.vocabulary.append(piece)
                case Ping():
                    self.send_message(Stats(len(self.requests), 0, 0.1, 0, 10, 5, 1, 60))
                case Control(number=number, operation=operation):
                    self.controls.append(operation)
                    if operation in ("pause", "resume"):
                        self.paused = operation == "pause"
                    self.send_message(ControlDone(number, self.refuses_weights if operation == "reload" else ""))
                case Shutdown() | WarmAdapter():
                    pass
                case other:
                    raise AssertionError(f"unexpected {other}")
        if batch.finished:
            self.send_message(batch)

    def step(self, wanted: Callable[[int], bool] = lambda _rid: True) -> None:
        """A token for each sequence of the requests that are ``wanted``, in one message."""
        batch = TokensBatch([], [], [])
        for rid, request in list(self.requests.items()):
            if wanted(rid) and not self.paused:
                self._advance(request, batch)
        if batch.tokens:
            self.send_message(batch)
            self.send_message(Stats(len(self.requests), 0, 0.1, 0, 10, 5, 1, 60))

    def _advance(self, request: _Request, batch: TokensBatch) -> None:
        submit = request.submit
        if not request.prompt_done:
            request.prompt_done = True
            asked = submit.params.prompt_logprobs is not None
            for start in range(1, len(submit.prompt) if asked else 0, 2):
                batch.parts.append(PromptPart(submit.rid, start, logprobs_of(submit.prompt[start : start + 2])))
            batch.prompts.append(PromptDone(submit.rid, 0, 0.0, 0.0, [] if asked else None))
        for index, given in list(request.given.items()):
            tokens, reason = expected(submit, index)
            new = tokens[given : given + 1]
            logprobs = None if submit.params.logprobs is None else logprobs_of(new)
            batch.tokens.append(SequenceTokens(submit.rid, index, new, logprobs))
            request.given[index] = given + 1
            if given + 1 == len(tokens):
                self._end(request, index, reason, batch)

    def _abort(self, rid: int, index: int, batch: TokensBatch) -> None:
        request = self.requests.get(rid)
        for each in [] if request is None else list(request.given):
            if request is not None and index in (-1, each):
                self._end(request, each, "abort", batch)

    def _end(self, request: _Request, index: int, reason: FinishReason, batch: TokensBatch) -> None:
        batch.finished.append(Finished(request.submit.rid, index, reason, None, None))
        del request.given[index]
        if not request.given:
            del self.requests[request.submit.rid]

    # ---- the endpoint

    async def send(self, frame: bytes) -> None:
        if not self.try_send(frame):
            raise PeerDied("the peer process is gone")

    def try_send(self, frame: bytes) -> bool:
        if not self.dead:
            self._inbox.append(bytes(frame))
        return not self.dead

    async def receive(self) -> list[bytes]:
        while not self._outbox:
            if self.dead:
                raise PeerDied("the peer process is gone")
            self._changed.clear()
            await self._changed.wait()
        frames, self._outbox = self._outbox, []
        return frames

    # ---- the process

    async def wait(self) -> int:
        while not self.dead:
            self._changed.clear()
            await self._changed.wait()
        return -9

    def close(self) -> None:
        self.closed = True
        self.kill()

    def kill(self) -> None:
        if not self.undying:
            self.die()

    async def kill_and_wait(self) -> bool:
        self.kill()
        if self.undying:
            await self.given_up.wait()
        return not self.undying

    async def aclose(self, grace: float = 0.0) -> bool:
        self.close()
        return await self.kill_and_wait()


class Engines:
    """Every engine that a client has started, the latest last."""

    def __init__(self) -> None:
        self.all: list[ScriptedEngine] = []
        self.any_order = False
        """See :attr:`ScriptedEngine.any_order`."""
        self.refusals = 0
        """How many of the next starts fail."""
        self.weights: list[int] = []
        """Memory files of prepared weights."""
        self.models: list[str] = []
        """What the workers of each engine but the first are to load."""

    @property
    def now(self) -> ScriptedEngine:
        return self.all[-1]

    def _again(self, config: EngineConfig) -> EngineProcess:
        process = self.launch()
        self.models.append(config.worker.model)
        return process

    def launch(self) -> EngineProcess:
        if self.refusals:
            self.refusals -= 1
            raise BlockingIOError(11, "Resource temporarily unavailable")
        engine = ScriptedEngine()
        engine.any_order = self.any_order
        self.all.append(engine)
        return EngineProcess(
            endpoint=engine,  # type: ignore[arg-type]
            child=engine,  # type: ignore[arg-type]
            arena=Arena(1 << 20),
            began=0.0,
            again=self._again,
            weights_fds=self.weights,
        )
