"""Transcription models that decode frame by frame: an encoder, and a CTC or transducer head.

A transcript is made greedily: of a window in one go, or of streamed audio chunk by chunk, if encoder and head were made
for that. It needs no KV cache: the state of a transducer lives while its window is decoded, or with its stream.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import torch
from msgspec.structs import replace
from torch.nn.functional import one_hot

from stentor import kernels

from ...layers.audio.convolution import Convolution
from ...layers.forward_batch import ForwardBatch
from ...layers.linear.layer_context import LayerContext
from ...layers.linear.linear import Linear
from ...layers.linear.weights import WeightMap
from ...layers.mlp import kernel_kind
from ...model_config.speech.fast_conformer import FastConformerSpec
from ...model_config.speech.framewise import FramewiseConfig, LanguagePromptSpec, ModulesEncoderSpec, TransducerSpec
from ..encoder_stack import EncodedWindows, Windows
from .conformer_stream import ConformerStream
from .ctc_modules import CTCModules
from .fast_conformer import FastConformer, Projection

COLUMNS: Final = 4
"""Columns of a transcript: a token, its first position in the audio, the position behind its last, its
log-probability."""
_UNUSED = (".num_batches_tracked",)
_WINDOWS_AT_ONCE = 8
"""Windows encoded together on a device, which bounds the memory; on a CPU a single one keeps the cores busy."""


class TransducerState(msgspec.Struct):
    """A transducer behind the positions so far; it has said all of each."""

    predicted: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
    """Behind the last token: the prediction network's output [hidden], and its states [layers, hidden]. None at the
    beginning."""


class FramewiseStream(msgspec.Struct):
    """The state of streamed audio between two chunks."""

    prompt: int
    """The number of its language."""
    audio: ConformerStream
    said: TransducerState = msgspec.field(default_factory=TransducerState)


class FramewiseTranscriber:
    """Audio in, transcripts out."""

    def __init__(self, config: FramewiseConfig, context: LayerContext, folder: Path) -> None:
        """``folder``: the model's. Raises :class:`...model_config.config_fields.ConfigError`."""
        self.config = config
        self._modules: CTCModules | None = None
        self._prompted: _Prompted | None = None
        self._decode: _CTC | _Transducer
        self._at_once = 1 if context.packed else _WINDOWS_AT_ONCE
        if isinstance(config.encoder, ModulesEncoderSpec):
            self.context, self._at_once = context, 1
            self._modules = CTCModules(config.encoder, context, folder)
            self.weights = self._modules.weights
            self._decode = _CTC(config)
            return
        self.weights = WeightMap()
        self.context = context = replace(context, float32_stream=context.packed)
        head, projection = config.transducer, None
        if head is not None:
            projection = Projection("encoder_projector", head.hidden_size)
        if config.languages is not None:
            assert projection is not None
            self._prompted = _Prompted(self.weights, config.languages, config.encoder.hidden_size, projection, context)
            projection = None  # it comes behind the prompt
        self.encoder = FastConformer(self.weights, "encoder", config.encoder, context, projection)
        if head is None:
            self._decode = _CTC(config, _ctc_head(self.weights, config, context))
        else:
            self._decode = _Transducer(self.weights, config, head, context)

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load the weights from a checkpoint's tensors. Raises :class:`...layers.linear.weights.WeightError`."""
        if self._modules is not None:
            self._modules.load(tensors)
            return
        self.weights.load(tensors, ignore=_UNUSED)

    def transcribe(
        self, windows: Windows, prompts: Sequence[int], after_layer: Callable[[], None] | None = None
    ) -> list[torch.Tensor]:
        """The transcript of each window: float32 [tokens, :data:`COLUMNS`], on the host.

        ``windows`` and ``after_layer``: as for :class:`..encoder_stack.AudioEncoder`; ``prompts``: the number of each
        window's language, which only some models read.
        """
        found: list[torch.Tensor] = []
        for first in range(0, len(windows), self._at_once):
            some = slice(first, first + self._at_once)
            if self._modules is not None:
                for scores in self._modules(windows[some], after_layer, prompts[some]):
                    made = self._decode(EncodedWindows(scores, [len(scores)]))
                    found += [torch.tensor(each, dtype=torch.float32).view(-1, COLUMNS) for each in made]
                continue
            encoded = self.encoder(windows[some], after_layer)
            if self._prompted is not None:
                encoded = self._prompted(encoded, prompts[some])
            made = self._decode(encoded)
            found += [torch.tensor(each, dtype=torch.float32).view(-1, COLUMNS) for each in made]
        return found

    @property
    def stream_bytes(self) -> int:
        """Bytes of a long stream's state, nearly all of it the encoder's."""
        return self.encoder.stream_bytes

    def begin(self, prompt: int) -> FramewiseStream:
        """The state of new streamed audio, for a model that :attr:`~.FramewiseConfig.streams`."""
        return FramewiseStream(prompt, self.encoder.begin())

    def transcribe_next(
        self, streams: Sequence[FramewiseStream], last: Sequence[bool], after_layer: Callable[[], None] | None = None
    ) -> list[torch.Tensor]:
        """Transcribe the next chunk of each stream, or all that is left of those that are at their ``last``; mutates
        them. Returns what each chunk adds to the transcript, as :meth:`transcribe` does.

        Raises ValueError if audio of a chunk has not come.
        """
        begins = [stream.audio.position for stream in streams]
        encoded = self.encoder.advance([stream.audio for stream in streams], last, after_layer)
        if self._prompted is not None:
            encoded = self._prompted(encoded, [stream.prompt for stream in streams])
        assert isinstance(self._decode, _Transducer)
        made = self._decode(encoded, [stream.said for stream in streams])
        found = [torch.tensor(each, dtype=torch.float32).view(-1, COLUMNS) for each in made]
        for rows, begin in zip(found, begins, strict=True):
            rows[:, 1:3] += begin
        return found

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """A pass over rows, of which no token says anything: [tokens, 1]."""
        assert isinstance(batch.tokens, torch.Tensor)
        return batch.tokens.new_zeros(len(batch.tokens), 1, dtype=torch.float32)


class _Prompted:
    """Says to each position which language is spoken, and projects it."""

    def __init__(
        self,
        weights: WeightMap,
        spec: LanguagePromptSpec,
        hidden: int,
        projection: Projection,
        context: LayerContext,
    ) -> None:
        self._count = spec.count
        self._layers = [
            Linear(weights, {name: size}, inputs, context, bias=True, dtype=context.stream)
            for name, inputs, size in (
                ("prompt_projector.linear_1", hidden + spec.count, spec.intermediate_size),
                ("prompt_projector.linear_2", spec.intermediate_size, hidden),
                (projection.name, hidden, projection.size),
            )
        ]

    def __call__(self, encoded: EncodedWindows, prompts: Sequence[int]) -> EncodedWindows:
        rows = encoded.rows
        lengths = torch.tensor(encoded.lengths, device=rows.device)
        of_rows = torch.tensor(prompts, device=rows.device).repeat_interleave(lengths)
        into, out, project = self._layers
        x = into(torch.cat([rows, one_hot(of_rows, self._count).to(rows.dtype)], dim=1)).relu()
        return EncodedWindows(project(out(x)), encoded.lengths)


_Row = tuple[int, int, int, float]
"""See :data:`COLUMNS`."""


def _ctc_head(weights: WeightMap, config: FramewiseConfig, context: LayerContext) -> Convolution:
    assert isinstance(config.encoder, FastConformerSpec)
    hidden = config.encoder.hidden_size
    return Convolution(weights, "ctc_head", hidden, config.vocab_size, context, width=1, pad=(0, 0))


class _CTC:
    """A token or a blank a position (connectionist temporal classification); equal neighbours are one."""

    def __init__(self, config: FramewiseConfig, head: Convolution | None = None) -> None:
        """``head``: None if the encoder makes scores."""
        self._head, self._blank = head, config.blank

    def __call__(self, encoded: EncodedWindows) -> list[list[_Row]]:
        rows = encoded.rows if self._head is None else self._head(encoded.rows.unsqueeze(0))[0]
        scores = rows.float()
        best = scores.argmax(1)
        likely = scores.gather(1, best.unsqueeze(1))[:, 0] - scores.logsumexp(1)
        tokens, logprobs = best.tolist(), likely.tolist()
        found, begin = [], 0
        for length in encoded.lengths:
            window = slice(begin, begin + length)
            found.append(self._joined(tokens[window], logprobs[window]))
            begin += length
        return found

    def _joined(self, tokens: Sequence[int], logprobs: Sequence[float]) -> list[_Row]:
        """A token's log-probability is that of its likeliest position."""
        found: list[_Row] = []
        before = self._blank
        for position, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
            if token == before and token != self._blank:
                _, first, _, likeliest = found[-1]
                found[-1] = token, first, position + 1, max(likeliest, logprob)
            elif token != self._blank:
                found.append((token, position, position + 1, logprob))
            before = token
        return found


class _Transducer:
    """A prediction network over the tokens so far, and a joint network that chooses a token at each position."""

    def __init__(
        self, weights: WeightMap, config: FramewiseConfig, spec: TransducerSpec, context: LayerContext
    ) -> None:
        hidden, stream = spec.hidden_size, context.stream
        self._config, self._spec, self._stream = config, spec, stream
        self._embedding = context.empty(config.vocab_size, hidden, dtype=stream)
        weights.add("decoder.embedding.weight", self._embedding)
        self._layers = []
        for layer in range(spec.layers):
            for which in ("ih", "hh"):
                for kind in ("weight", "bias"):
                    weights.alias(f"decoder.lstm.{kind}_{which}_l{layer}", f"decoder.lstm.{which}{layer}.{kind}")
            into, back = (
                Linear(weights, {f"decoder.lstm.{which}{layer}": 4 * hidden}, hidden, context, bias=True, dtype=stream)
                for which in ("ih", "hh")
            )
            self._layers.append((into, back))
        parts = {"decoder.decoder_projector": hidden}
        self._project = Linear(weights, parts, hidden, context, bias=True, dtype=stream)
        outputs = config.vocab_size + len(spec.durations)
        self._head = Linear(weights, {"joint.head": outputs}, hidden, context, bias=True, dtype=stream)

    def __call__(self, encoded: EncodedWindows, before: Sequence[TransducerState] = ()) -> list[list[_Row]]:
        """``before``: the states behind earlier positions of each window, which are mutated; empty: there are none."""
        spec, blank, device = self._spec, self._config.blank, encoded.rows.device
        lengths = encoded.lengths
        begins = (torch.tensor(lengths).cumsum(0) - torch.tensor(lengths)).tolist()
        found: list[list[_Row]] = [[] for _ in lengths]
        at, symbols = [0] * len(lengths), [0] * len(lengths)
        """Of each window: its position, and the tokens of that."""
        left = [spec.most_symbols * length for length in lengths]
        """Steps, without which tokens of no duration could follow each other for ever."""
        hidden = encoded.rows.new_zeros(spec.layers, len(lengths), spec.hidden_size)
        cell = torch.zeros_like(hidden, dtype=torch.float32)
        said = torch.zeros_like(hidden[0])
        active = list(range(len(lengths)))
        new = active
        for row, state in enumerate(before):
            if state.predicted is not None:
                said[row], hidden[:, row], cell[:, row] = state.predicted
                new = [each for each in new if each != row]
        tokens = [blank] * len(new)

        def predict() -> None:
            rows = torch.tensor(new, device=device)
            made = self._predict(torch.tensor(tokens, device=device), hidden[:, rows], cell[:, rows])
            said[rows], hidden[:, rows], cell[:, rows] = made

        while active:
            if new:
                predict()
            rows = torch.tensor(active, device=device)
            places = torch.tensor([begins[row] + at[row] for row in active], device=device)
            chosen = self._chosen(encoded.rows[places] + said[rows])
            new, tokens = [], []
            for row, (token, logprob, duration) in zip(active, chosen, strict=True):
                first, left[row] = at[row], left[row] - 1
                if token != blank:
                    found[row].append((token, first, first + (duration if spec.durations else 1), logprob))
                    new.append(row)
                    tokens.append(token)
                if spec.durations:
                    at[row] += max(duration, 1) if token == blank else duration
                    continue
                symbols[row] = 0 if token == blank else symbols[row] + 1
                if token == blank or symbols[row] >= spec.most_symbols:
                    at[row], symbols[row] = first + 1, 0
            active = [row for row in active if at[row] < lengths[row] and left[row]]
        if before and new:
            predict()
        for row, state in enumerate(before):
            state.predicted = said[row].clone(), hidden[:, row].clone(), cell[:, row].clone()
        return found

    def _chosen(self, joined: torch.Tensor) -> list[tuple[int, float, int]]:
        """[rows, hidden] → the likeliest token of each, its log-probability and its duration."""
        scores = self._head(kernels.activate_(joined.contiguous(), kernel_kind(self._spec.activation))).float()
        of_tokens = scores[:, : self._config.vocab_size]
        best = of_tokens.argmax(1)
        likely = of_tokens.gather(1, best.unsqueeze(1))[:, 0] - of_tokens.logsumexp(1)
        durations = [0] * len(best)
        if self._spec.durations:
            chosen = scores[:, self._config.vocab_size :].argmax(1).tolist()
            durations = [self._spec.durations[each] for each in chosen]
        return list(zip(best.tolist(), likely.tolist(), durations, strict=True))

    def _predict(
        self, tokens: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One token more of each row: output [rows, hidden], and the states [layers, rows, hidden] behind it."""
        x, kept, cells = kernels.embedding(tokens, self._embedding), [], []
        for (into, back), before, held in zip(self._layers, hidden, cell, strict=True):
            enter, forget, make, leave = (into(x).float() + back(before).float()).chunk(4, dim=1)
            now = forget.sigmoid() * held + enter.sigmoid() * make.tanh()
            x = (leave.sigmoid() * now.tanh()).to(self._stream)
            kept.append(x)
            cells.append(now)
        return self._project(x), torch.stack(kept), torch.stack(cells)
