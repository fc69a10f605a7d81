"""Checks that a worker's result has the shape that its step must have, before anything of it is applied."""

from collections.abc import Mapping

from stentor.protocols.ipc.steps import PromptLogprobs, RowDrafts, RowExperts, StepResult

from .step import InFlightStep, Owner

Owners = Mapping[int, Owner]
"""By slot."""


def check_result(flight: InFlightStep, result: StepResult) -> None:
    """Raises ValueError for a result that the step cannot have."""
    step = flight.step
    drawn = flight.sampled if result.counts is None else _drawn(flight, result.counts, result.drafted)
    for what, values in (("tokens", result.tokens), ("logprobs", result.logprobs)):
        if values is not None and len(values) != drawn:
            raise ValueError(f"the worker sent {len(values)} {what} for step {step}, which draws {drawn}")
    if not {*result.encoded} <= {slot for slot, _, _ in flight.slices}:
        raise ValueError(f"the worker has encoded slots {result.encoded} in step {step}, which encodes others")
    extras = (result.prompt_logprobs, result.alignments, result.pooled, result.drafts, result.routed, result.faults)
    if not any(extras):
        return
    owners = flight.by_slot()
    for piece in result.prompt_logprobs:
        _check_prompt_logprobs(piece, owners, step)
    for row in result.alignments:
        owner = owners.get(row.slot)
        if owner is None or owner.sequence.request.probe is None:
            raise ValueError(
                f"the worker sent an alignment of slot {row.slot} in step {step}, where nobody asked for one"
            )
    for made in result.pooled:
        owner = owners.get(made.slot)
        if owner is None or owner.sequence.request.pooling is None:
            raise ValueError(f"the worker made a vector of slot {made.slot} in step {step}, where nobody asked for one")
    for routed in result.routed:
        _check_experts(routed, owners, step)
    for fault in result.faults:
        owner = owners.get(fault.slot)
        if owner is None or not owner.sequence.request.media.spans:
            raise ValueError(f"the worker finds fault with slot {fault.slot} in step {step}: {fault.message}")
    for draft in result.drafts:
        _check_drafts(draft, owners, step)


def _drawn(flight: InFlightStep, counts: list[int], drafted: list[int] | None) -> int:
    """The number of tokens. Raises ValueError for counts that the step cannot have."""
    most = [owner.max_gained for owner in flight.owners if owner.max_gained]
    if len(counts) != len(most) or not all(1 <= count <= top for count, top in zip(counts, most, strict=True)):
        raise ValueError(f"the worker sent counts {counts} for step {flight.step}, whose rows gain 1 to {most}")
    if drafted is not None and (
        len(drafted) != len(most)
        or not all(count <= 1 + own <= top for count, own, top in zip(counts, drafted, most, strict=True))
    ):
        raise ValueError(
            f"the worker sent counts {counts} of drafts {drafted} for step {flight.step}, whose rows gain 1 to {most}"
        )
    return sum(counts)


def _check_prompt_logprobs(piece: PromptLogprobs, owners: Owners, step: int) -> None:
    owner = owners.get(piece.slot)
    if owner is None:
        raise ValueError(f"the worker sent prompt logprobs of slot {piece.slot}, not in step {step}")
    end, prompt_len = piece.start + len(piece.positions), owner.sequence.request.prompt_len
    if not 0 < piece.start <= end <= prompt_len:
        raise ValueError(
            f"the worker sent prompt logprobs of tokens {piece.start} to {end} in step {step}; "
            f"slot {piece.slot} has such for 1 to {prompt_len}"
        )


def _check_experts(routed: RowExperts, owners: Owners, step: int) -> None:
    owner = owners.get(routed.slot)
    asks = owner is not None and owner.sequence.request.params.routed_experts is not None
    if owner is None or not asks or routed.count < 1 or len(routed.data) % routed.count:
        raise ValueError(
            f"the worker sent {len(routed.data)} bytes of experts of {routed.count} positions of slot {routed.slot} in "
            f"step {step}, where nobody asked for them"
        )
    if not 0 <= routed.start <= routed.start + routed.count <= owner.end:
        raise ValueError(
            f"the worker sent experts of positions {routed.start} to {routed.start + routed.count} of slot "
            f"{routed.slot} in step {step}, which ends at {owner.end}"
        )


def _check_drafts(draft: RowDrafts, owners: Owners, step: int) -> None:
    owner = owners.get(draft.slot)
    constraint = None if owner is None or not owner.max_gained else owner.sequence.constraint
    if constraint is None or min(draft.tokens, default=0) < 0:
        raise ValueError(f"the worker drafts {draft.tokens} for slot {draft.slot} in step {step}, which needs none")
