"""Encoders and classification heads that run transformers' modules, text by text."""

import copy
import inspect
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final

import torch

from ...layers.forward_batch import ForwardBatch
from ...layers.linear.layer_context import LayerContext
from ...layers.linear.weights import WeightError, WeightMap
from ...model_config.config_fields import ConfigError
from ...model_config.encoders.pooling import ScoreHead
from ...model_config.encoders.transformers_config import TransformersEncoder
from ...model_config.transformers_config import configuration, first_line
from .names import module_tensors

_TRIAL_TOKENS: Final = 3
_POOLER: Final = "pooler."
"""Ignored in models without a head."""


class _Encoded:
    """A model's output in the form that heads read: hidden states, and optionally a pooled vector."""

    def __init__(self, hidden: torch.Tensor, pooled: torch.Tensor | None) -> None:
        self.last_hidden_state, self.pooler_output = hidden, pooled

    def __getitem__(self, at: Any) -> Any:
        return (self.last_hidden_state, self.pooler_output)[at]

    def __getattr__(self, name: str) -> None:
        return None


class _Reached(Exception):
    """The base model below a head has run."""

    def __init__(self, made: Any) -> None:
        super().__init__()
        self.made = made


class _Reaching(torch.nn.Module):
    """Replaces the base model below a head, to run it with what the whole model gives it: raises :class:`_Reached` with
    its output, so that the head does not run."""

    def __init__(self, below: Any) -> None:
        super().__init__()
        self._below = below

    def forward(self, *given: Any, **named: Any) -> Any:
        raise _Reached(self._below(*given, **named))


class _EncodedInput(torch.nn.Module):
    """Replaces the base model below a head: returns the given hidden states, pooled by the base model's pooler."""

    def __init__(self, below: Any) -> None:
        super().__init__()
        self.hidden: torch.Tensor | None = None
        """[texts, tokens, hidden]: what it returns next."""
        self._pooler = getattr(below, "pooler", None)
        self._activation = getattr(below, "pooler_activation", None)

    def forward(self, *_unused: Any, **_asked: Any) -> _Encoded:
        hidden, pooled = self.hidden, None
        assert hidden is not None
        if isinstance(self._pooler, torch.nn.Linear):  # ALBERT
            pooled = self._pooler(hidden[:, 0])
            pooled = pooled if self._activation is None else self._activation(pooled)
        elif self._pooler is not None:
            pooled = self._pooler(hidden)
        return _Encoded(hidden, pooled)


class TransformersBackbone:
    """Token ids in, hidden states out, as :class:`..encoder.Encoder`. Texts of equal length run together, so that none
    is padded and results equal transformers'."""

    def __init__(self, config: TransformersEncoder, context: LayerContext) -> None:
        """Raises :class:`ConfigError` if transformers cannot make the modules."""
        from transformers.conversion_mapping import get_model_conversion_mapping

        self.config = config
        self.weights = WeightMap()
        self._context = context
        model = _made(config, context)
        self._model = model
        below = getattr(model, model.base_model_prefix, None) if model.base_model_prefix else None
        self._below = model if below is None else below
        if "input_ids" not in inspect.signature(self._below.forward).parameters:
            raise ConfigError(f"transformers' {config.module} takes no tokens")
        self._asked = set(inspect.signature(model.forward).parameters)
        self._head = None
        if below is not None:
            self._encoded = _EncodedInput(below)
            self._head = _with_base(model, self._encoded)
            self._reaching = _with_base(model, _Reaching(below))
        self._tensors, self._conversions = model.state_dict(), get_model_conversion_mapping(model)
        tied = model.all_tied_weights_keys
        self.weights.pass_over(*tied)
        for name, tensor in self._tensors.items():
            if name not in tied and (self._head is not None or not name.startswith(_POOLER)):
                self.weights.add(name, tensor)

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load the modules from a checkpoint's tensors; ignores those of heads that the model does not have.

        Raises :class:`WeightError`.
        """
        named = module_tensors(self._model, self._conversions, self._tensors, tensors)
        self.weights.load((name, tensor) for name, tensor in named if self.weights.wants(name))
        if self._head is not None:
            self._check_head()

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Whole texts → hidden states [tokens, hidden]."""
        tokens, texts = batch.tokens, batch.texts
        assert isinstance(tokens, torch.Tensor)
        assert texts is not None
        hidden = torch.empty(len(tokens), self.config.hidden_size, dtype=self._context.dtype, device=tokens.device)
        starts = texts.varlen.host_cu_seqlens.tolist()
        alike: defaultdict[int, list[int]] = defaultdict(list)
        for start, end in pairwise(starts):
            alike[end - start].append(start)
        for length, begins in alike.items():
            places = torch.tensor(begins, device=tokens.device)[:, None] + torch.arange(length, device=tokens.device)
            kinds = None if batch.token_types is None else batch.token_types[places]
            hidden[places] = self._hidden(tokens[places], kinds)
            if batch.after_layer is not None:
                batch.after_layer()
        return hidden

    def logits(self, hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """The head's logits for a text's hidden states [tokens, hidden] and its tokens → float32 [1 or tokens,
        labels]."""
        assert self._head is not None
        self._encoded.hidden = hidden[None]
        made: torch.Tensor = self._head(input_ids=tokens[None], return_dict=True).logits
        return made.float().view(-1, made.shape[-1])

    def _hidden(self, tokens: torch.Tensor, kinds: torch.Tensor | None) -> torch.Tensor:
        """int64 [texts, tokens] each → [texts, tokens, hidden]."""
        given: dict[str, Any] = {"input_ids": tokens, "return_dict": True}
        if kinds is not None and "token_type_ids" in self._asked:
            given["token_type_ids"] = kinds
        if "use_cache" in self._asked:
            given["use_cache"] = False
        if self._head is None:
            made = self._model(**given)
        else:  # as the whole model calls it: with the inputs of a decoder, or a mask of tokens that see all others
            try:
                self._reaching(**given)
            except _Reached as reached:
                made = reached.made
            else:
                raise RuntimeError(f"transformers' {self.config.module} does not run its {type(self._below).__name__}")
        hidden: torch.Tensor = made.last_hidden_state
        return hidden

    def _check_head(self) -> None:
        """Check that the head on hidden states gives the logits of the whole model. Raises :class:`WeightError`."""
        tokens = torch.arange(_TRIAL_TOKENS, device=self._context.device)[None] % self.config.vocab_size
        if self.config.scored_token is not None:
            tokens[0, -1] = self.config.scored_token
        try:
            with torch.inference_mode():
                whole = self._model(input_ids=tokens, return_dict=True).logits
                hidden = self._hidden(tokens, None)[0]
                ours = self.logits(hidden, tokens[0])
        except Exception as error:  # another library's code may raise anything
            raise WeightError(f"transformers' {self.config.module} cannot score: {first_line(error)}") from error
        if len(hidden) != _TRIAL_TOKENS:
            counted = f"{len(hidden)} states of {_TRIAL_TOKENS} tokens"
            raise WeightError(f"transformers' {self.config.module} makes {counted}, expected one for each")
        if not torch.allclose(ours, whole.float().view(ours.shape), rtol=1e-3, atol=1e-3):
            raise WeightError(f"the head of transformers' {self.config.module} needs more than hidden states")


class TransformersScorer:
    """Scores by class, of each text or each token, by transformers' head."""

    def __init__(self, head: ScoreHead, backbone: TransformersBackbone) -> None:
        self.head = head
        self.weights = WeightMap()
        """Empty: the backbone has its tensors."""
        self._backbone = backbone

    def __call__(self, hidden: torch.Tensor, tokens: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
        """hidden [tokens, size], tokens int64 [tokens], cu_seqlens int64 [texts + 1] → logits float32 [texts or
        tokens, labels]."""
        lengths = cu_seqlens.diff().tolist()
        texts = zip(hidden.split(lengths), tokens.split(lengths), strict=True)
        return torch.cat([self._backbone.logits(*text) for text in texts])


def _with_base(model: Any, base: torch.nn.Module) -> Any:
    """The model with other modules in place of those below its head; both share all others."""
    copied = copy.copy(model)
    copied._modules = {**model._modules, model.base_model_prefix: base}
    return copied


def _made(config: TransformersEncoder, context: LayerContext) -> Any:
    """The modules with values in buffers only; with a pooler only if a head of theirs may use it."""
    import transformers
    from transformers.initialization import no_init_weights

    which: Any = getattr(transformers, config.module)
    given: dict[str, Any] = {"dtype": context.dtype}
    if "add_pooling_layer" in inspect.signature(which.__init__).parameters:
        given["add_pooling_layer"] = False
    try:
        with no_init_weights(), torch.device(context.place):
            model = which._from_config(configuration(config.described), **given)
    except Exception as error:  # another library's code
        raise ConfigError(f"transformers cannot make its {config.module}: {first_line(error)}") from error
    model.eval().requires_grad_(False)
    model.tie_weights()
    return model
