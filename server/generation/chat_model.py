"""The chat model as every protocol uses it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from stentor.engine.client.replicas import AnyEngineClient
from stentor.protocols.common.limits import Limits

from ..common.loop_turns import LoopTurns
from ..config.model_registry import ModelRegistry, ModelRole
from ..config.models import ModelConfig
from ..grammar.checker import Grammars
from ..media.chat_media import ChatMedia, lacks_encoder
from ..media.collect import TEXT_ONLY, Accepted
from ..observability.metrics import Metrics
from ..observability.request_metrics import RequestMetrics
from ..parsing.output import OutputFormat
from ..state.admission_control import AdmissionControl
from ..text.grammar_tokens import special_tokens_of
from ..text.infill import Infill, infill_of
from ..text.pool import TokenizerPool
from ..text.renderers.interface import Renderer
from .model_facts import ModelFacts


@dataclass(frozen=True)
class GenerationDefaults:
    """What the model's ``generation_config.json`` says; a request's own values beat these."""

    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    eos_token_ids: tuple[int, ...] = ()

    def ending(self, tokens: Iterable[int]) -> Self:
        """The same, with these tokens ending a turn too."""
        return replace(self, eos_token_ids=tuple(sorted({*self.eos_token_ids, *tokens})))


@dataclass(frozen=True)
class ChatModel:
    """From a conversation to the engine and back: the tokenizer, the renderer, the grammars and the engine's client.

    Where the server has no chat model, these are the main model's, and :meth:`resolve` refuses every request.
    """

    config: ModelConfig
    client: AnyEngineClient
    pool: TokenizerPool
    renderer: Renderer
    """How conversations become prompts."""
    output: OutputFormat
    """How the model writes reasoning and tool calls."""
    grammars: Grammars
    """Whatever grammar a request brings is tried there before the engine is given it."""
    vocab_size: int
    """Token ids that a client may name lie in [0, vocab_size)."""
    defaults: GenerationDefaults
    admission: AdmissionControl
    registry: ModelRegistry
    """Of all models of the server."""
    metrics: Metrics
    accepted: Accepted = TEXT_ONLY
    """What conversations may hold besides text."""
    media: ChatMedia | None = None
    """For that, and for documents; None where neither is read."""
    facts: ModelFacts = field(default_factory=ModelFacts)
    """What it is made of."""
    turns: LoopTurns = field(default_factory=LoopTurns)
    """For whatever would keep the event loop from all other requests."""
    role: ModelRole = "chat"
    """What it is served for: another than ``chat`` is asked for that alone."""

    @property
    def limits(self) -> Limits:
        """Of what one request may ask for."""
        return self.admission.limits

    @cached_property
    def requests(self) -> RequestMetrics:
        """What is measured of those to this model."""
        return self.metrics.requests_of(self.config.served_names[0])

    @cached_property
    def special_tokens(self) -> Mapping[str, int]:
        """Ids of special tokens by their text, as grammars name them."""
        return special_tokens_of(self.pool.tokenizer)

    @cached_property
    def infill(self) -> Infill | None:
        """How the model is asked to fill in the middle of a text; None where it was not made for that."""
        return infill_of(self.pool.tokenizer)

    @property
    def max_model_len(self) -> int | None:
        """Longest sequence, prompt and output; None until the engine is ready."""
        ready = self.client.ready
        return None if ready is None else ready.max_model_len

    @property
    def input_modalities(self) -> list[str]:
        """What messages may hold, by OpenRouter's names: ``text``; ``image``, ``video`` and ``audio`` as far as the
        model takes them and its encoder has been loaded; ``file`` where documents are read."""
        text_only = lacks_encoder(self.client.ready)
        taken = [] if text_only else [modality for modality, most in self.accepted.counts.items() if most]
        return ["text", *taken, *(["file"] if self.media is not None else [])]

    def resolve(self, name: str | None) -> str:
        """The served name of the chat model that a request meant; None means the first.

        Raises BadRequest as :meth:`..config.model_registry.ModelRegistry.resolve` does.
        """
        return self.registry.resolve(name, "chat")
