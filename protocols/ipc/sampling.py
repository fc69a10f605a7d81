"""Sampling parameters as the engine and its workers see them: resolved, validated, protocol-free."""

import msgspec

from .audio import TokenRules

MAX_LOGPROBS = 20
"""Most alternatives a client may ask for at one position."""
MAX_LOGPROB_TOKEN_IDS = 128
"""Most tokens that a client may name in their place, as in vLLM."""


class NoRepeat(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """No sequence of ``size`` tokens, 2 or more, comes twice in the output's last ``window`` tokens."""

    size: int
    window: int
    exempt: tuple[int, ...] = ()
    """Tokens that may end such a sequence again."""


class SamplingParams(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Sampling parameters of one request.

    Every default is neutral: with only ``max_tokens``, tokens are sampled from the model's own distribution. Lengths
    count tokens.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    """0 is greedy: the exact argmax, lowest token id first among equals."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in prompt or output (CTRL, arXiv:1909.05858)."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    eos_token_ids: tuple[int, ...] = ()
    """End the sequence without being part of it; empty if the client asked to ignore EOS."""
    stop_token_ids: tuple[int, ...] = ()
    """End the sequence and are reported as the stop reason."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    banned_token_ids: tuple[int, ...] = ()
    banned_sequences: tuple[tuple[int, ...], ...] = ()
    """Sequences of two and more tokens. The engine bans the last token of each after the others."""
    logprobs: int | None = None
    """None: none. n: the sampled token's log-probability and the n most likely alternatives."""
    logprob_token_ids: tuple[int, ...] = ()
    """In place of the n most likely alternatives: these n tokens, all different."""
    prompt_logprobs: int | None = None
    routed_experts: int | None = None
    """First position whose experts are returned (:class:`.steps.RowExperts`); None: none."""
    num_drafts: int | None = None
    """Most draft tokens in a step; None: the engine decides."""
    rules: TokenRules | None = None
    """Rules of a transcript's tokens, applied to the logits first."""
    processed_logprobs: bool = False
    """Log-probabilities of output tokens are of the distribution that they are sampled from: after penalties, bias,
    allowed tokens, temperature and cuts. A greedy row has no temperature and no cuts."""
    logits: bool = False
    """Logits are told in place of log-probabilities, also of the prompt."""
    no_repeat: NoRepeat | None = None
    """The engine bans the last token of a sequence that would come again."""

    @property
    def needs_penalties(self) -> bool:
        """Whether the logits depend on the tokens seen so far."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
