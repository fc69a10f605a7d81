"""The chat model as every protocol uses it."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Self

import msgspec
from msgspec.structs import replace

from stentor.engine.client.replicas import AnyEngineClient
from stentor.protocols.common.limits import Limits

from ..common.loop_turns import LoopTurns
from ..config.model_facts import ModelFacts
from ..config.model_registry import ModelRegistry, ModelRole
from ..config.models import ModelConfig
from ..grammar.checker import Grammars
from ..media.chat_media import ChatMedia, lacks_encoder
from ..media.collect import TEXT_ONLY, Accepted
from ..observability.metrics import Metrics
from ..observability.request_metrics import RequestMetrics
from ..parsing.output import OutputFormat
from ..state.admission_control import AdmissionControl
from ..text.pool import TokenizerPool
from ..text.renderers.interface import Renderer
from ..text.tokenizers.grammar_tokens import special_tokens_of
from ..text.tokenizers.infill import Infill, infill_of
from .picture_prompt import PicturePrompt


class GenerationDefaults(msgspec.Struct, frozen=True):
    """Sampling defaults of the model's ``generation_config.json``; a request's own values take precedence, but for
    ``most_tokens``."""

    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    eos_token_ids: tuple[int, ...] = ()
    most_tokens: int | None = None
    """Most tokens of any answer, whatever a request says; None: as many as the context has room for."""

    def ending(self, tokens: Iterable[int]) -> Self:
        """A copy in which these tokens end a turn too."""
        return replace(self, eos_token_ids=tuple(sorted({*self.eos_token_ids, *tokens})))


class ChatModel(msgspec.Struct, frozen=True, dict=True):
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
    """Compiles every grammar of a request on trial before the engine gets it."""
    vocab_size: int
    """Token ids of clients must be in [0, vocab_size)."""
    defaults: GenerationDefaults
    admission: AdmissionControl
    registry: ModelRegistry
    """All models of the server."""
    metrics: Metrics
    accepted: Accepted = TEXT_ONLY
    """Media that conversations may contain besides text."""
    media: ChatMedia | None = None
    """Processes these media, and documents; None if neither is supported."""
    facts: ModelFacts = msgspec.field(default_factory=ModelFacts)
    """Description of the model for clients."""
    loop_turns: LoopTurns = msgspec.field(default_factory=LoopTurns)
    """Runs work that would block the event loop for long."""
    prompt_width: int = 0
    """Numbers of an embedding, where prompts may be embeddings; 0: they may not."""
    decoder_start: tuple[int, ...] = ()
    """Of an encoder-decoder, whose encoder gets the prompt: the tokens with which its decoder begins; empty for
    decoders."""
    picture: PicturePrompt | None = None
    """How a model that writes about one picture is asked; None for others."""
    role: ModelRole = "chat"
    """The model's role; a role other than ``chat`` means that it serves nothing else."""

    @property
    def limits(self) -> Limits:
        """Limits of one request."""
        return self.admission.limits

    @cached_property
    def requests(self) -> RequestMetrics:
        """Metrics of requests to this model."""
        return self.metrics.requests_of(self.config.served_names[0])

    @cached_property
    def special_tokens(self) -> Mapping[str, int]:
        """Ids of special tokens by their text, as grammars name them."""
        return special_tokens_of(self.pool.tokenizer)

    @cached_property
    def infill(self) -> Infill | None:
        """The model's fill-in tokens; None if it has none."""
        return infill_of(self.pool.tokenizer)

    @property
    def max_model_len(self) -> int | None:
        """Longest sequence, prompt and output together; None until the engine is ready."""
        ready = self.client.ready
        return None if ready is None else ready.max_model_len

    @property
    def input_modalities(self) -> list[str]:
        """Allowed inputs by OpenRouter's names: ``text``; ``image``, ``video`` and ``audio`` if the model supports them
        and its encoder is loaded; ``file`` if documents are supported."""
        text_only = lacks_encoder(self.client.ready)
        taken = [] if text_only else [modality for modality, most in self.accepted.counts.items() if most]
        return ["text", *taken, *(["file"] if self.media is not None else [])]

    def resolve(self, name: str | None) -> str:
        """The served name of the chat model that a request named; None means the first.

        Raises BadRequest as :meth:`..config.model_registry.ModelRegistry.resolve` does.
        """
        return self.registry.resolve(name, "chat")
