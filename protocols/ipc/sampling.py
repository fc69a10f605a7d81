"""Sampling parameters as the engine and its workers see them: resolved, validated, protocol-free."""

import msgspec

from .audio import TokenRules

MAX_LOGPROBS = 20
"""Most alternatives a client may ask for at one position."""


class SamplingParams(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How the tokens of one request are drawn.

    Every default is neutral: a params object made with only ``max_tokens`` samples from the
    model's own distribution. Lengths are counted in tokens.
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
    """End the sequence silently; empty when the client asked to ignore EOS."""
    stop_token_ids: tuple[int, ...] = ()
    """End the sequence and are reported as the stop reason."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    banned_token_ids: tuple[int, ...] = ()
    banned_sequences: tuple[tuple[int, ...], ...] = ()
    """Of two tokens and more; kept to by the engine, which bans the last of each where the others were drawn."""
    logprobs: int | None = None
    """None: none. n: the sampled token's log-probability and the n most likely alternatives."""
    prompt_logprobs: int | None = None
    routed_experts: int | None = None
    """The first position of which it is told which experts computed it (:class:`.steps.RowExperts`); None: of none."""
    num_drafts: int | None = None
    """Draft tokens in a step, at most; None leaves their number to the engine."""
    rules: TokenRules | None = None
    """Which tokens may follow which, in a transcript; taken out of the logits before all else."""

    @property
    def needs_penalties(self) -> bool:
        """Whether the logits depend on the tokens seen so far."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
