"""Tiny random Whispers of transformers' own making, and a step-by-step driver of ours."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers as untyped_transformers

from stentor import kernels
from stentor.engine.layers.forward_batch import Encoded, ForwardBatch
from stentor.engine.layers.linear.layer_context import LayerContext
from stentor.engine.loading.checkpoint import Checkpoint, open_checkpoint
from stentor.engine.loading.weights import iterate_weights
from stentor.engine.model_config.spec.seq2seq import ENCODER_BLOCK, Seq2SeqConfig
from stentor.engine.model_config.speech.whisper import WhisperConfig
from stentor.engine.models.encoder_decoder import EncoderDecoder
from stentor.engine.worker.caches import allocate_caches
from stentor.kernels import native
from stentor.kernels.linear_packed import PLAIN

transformers: Any = untyped_transformers

VOCAB = 200
BLOCK = 16
BLOCKS = 64
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 48,
    "encoder_layers": 2,
    "encoder_attention_heads": 3,
    "encoder_ffn_dim": 80,
    "decoder_layers": 3,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 96,
    "max_source_positions": 50,
    "max_target_positions": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 150,
    "decoder_start_token_id": 151,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
"""A window of one second."""


def tiny(seed: int = 0, **changes: Any) -> Any:
    """transformers' model in float32, with weights large enough for every part to count."""
    torch.manual_seed(seed)
    config = transformers.WhisperConfig(**{**SHAPE, **changes}, attn_implementation="eager")
    model = transformers.WhisperForConditionalGeneration(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layer_norm.weight" in name:
                parameter.uniform_(0.6, 1.4)
            elif not name.endswith("encoder.embed_positions.weight"):
                parameter.normal_(0, 0.15)
    return model


def whisper_of(checkpoint: Checkpoint) -> WhisperConfig:
    assert isinstance(checkpoint.config, WhisperConfig)
    return checkpoint.config


def real(checkpoint: Checkpoint) -> Any:
    """The same model in transformers, in float32."""
    config = whisper_of(checkpoint)
    made = transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(
            vocab_size=config.vocab_size,
            d_model=config.hidden_size,
            encoder_layers=config.encoder_layers,
            encoder_attention_heads=config.encoder_heads,
            encoder_ffn_dim=config.encoder_intermediate_size,
            decoder_layers=config.num_layers,
            decoder_attention_heads=config.num_heads,
            decoder_ffn_dim=config.intermediate_size,
            num_mel_bins=config.mel_bins,
            attn_implementation="eager",
        )
    )
    tensors = {name: tensor.float() for name, tensor in iterate_weights(checkpoint, torch.float32)}
    missing = made.load_state_dict(tensors, strict=False)
    assert missing.missing_keys == ["proj_out.weight"], "tied to the embedding"
    assert all(name.endswith("k_proj.bias") for name in missing.unexpected_keys), "which are zero"
    made.tie_weights()
    return made.float().eval()


class PagedEncoderDecoder:
    """Our model with a small cache whose blocks are handed out out of order, one row a window."""

    def __init__(self, path: Path, *, dtype: torch.dtype = torch.float32, packed: bool | None = None) -> None:
        checkpoint = open_checkpoint(path)
        if packed is None:
            packed = native.library() is not None and dtype in PLAIN
        assert isinstance(checkpoint.config, Seq2SeqConfig)
        self.config = checkpoint.config
        self.model = EncoderDecoder(self.config, LayerContext(torch.device("cpu"), dtype, False, packed=packed))
        with torch.inference_mode():
            self.model.load(iterate_weights(checkpoint, dtype))
        own, cross, cpu = self.config.cache_groups, self.config.cross_group, torch.device("cpu")
        self.places = allocate_caches([cross], 5 * self.config.slot_blocks, ENCODER_BLOCK, cpu, dtype)
        self.caches = allocate_caches(own, BLOCKS, BLOCK, cpu, dtype)
        self._free = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(3)).tolist()
        self._tables: list[list[int]] = []
        self._lengths: list[int] = []
        self.queries: dict[int, torch.Tensor] = {}
        self.hidden = torch.empty(0)
        self.place_of: list[int] = []

    @torch.inference_mode()
    def listen(self, windows: Sequence[bytes]) -> None:
        """Begins a row for each window, in places that are not in order."""
        self.place_of = [(3 * row + 1) % 5 for row in range(len(windows))]
        self._audio_lengths = self.model.write_encodings(windows, self.place_of, self.places)
        self._tables = [[] for _ in windows]
        self._lengths = [0 for _ in windows]

    @torch.inference_mode()
    def step(self, tokens: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """The next tokens of every row → float32 [tokens, vocabulary] of each; a row may have none."""
        rows = [row for row, some in enumerate(tokens) if some]
        starts = [self._lengths[row] for row in rows]
        for row in rows:
            self._lengths[row] += len(tokens[row])
            while len(self._tables[row]) * BLOCK < self._lengths[row]:
                self._tables[row].append(self._free.pop())
        counts = [len(tokens[row]) for row in rows]
        positions = [p for start, count in zip(starts, counts, strict=True) for p in range(start, start + count)]
        owners = [row for row, count in zip(rows, counts, strict=True) for _ in range(count)]
        slots = [self._tables[r][p // BLOCK] * BLOCK + p % BLOCK for r, p in zip(owners, positions, strict=True)]
        width = max(len(self._tables[row]) for row in rows)
        tables = [self._tables[row] + [0] * (width - len(self._tables[row])) for row in rows]
        lengths = [self._lengths[row] for row in rows]
        batch = kernels.AttentionBatch(
            torch.tensor([0, *counts]).cumsum(0).int(),
            torch.tensor(lengths, dtype=torch.int32),
            torch.tensor(tables, dtype=torch.int32),
            torch.tensor(slots),
            max(counts),
            max(lengths),
        )
        self.queries = {}
        self.hidden = self.model.forward(
            ForwardBatch(
                torch.tensor([token for row in rows for token in tokens[row]]),
                torch.tensor(positions),
                self.caches,
                [batch],
                encoded=Encoded(
                    self.model.cross_batch(
                        [self.place_of[row] for row in owners], [self._audio_lengths[row] for row in owners]
                    ),
                    self.places,
                    self.queries,
                ),
            )
        ).clone()
        parts = iter(self.model.logits(self.hidden).clone().split(counts))
        return [next(parts) if some else torch.empty(0) for some in tokens]
