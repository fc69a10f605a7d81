"""Whether a worker proposes drafts, and who does in it."""

import msgspec
import torch

from stentor.protocols.ipc.config import WorkerConfig

from .errors import SetupError
from .families import Family, Text
from .speculation import NgramProposer, Proposer, SuffixProposer

_OPTION = "--speculative-config"


def settle_drafts(config: WorkerConfig, family: Family, device: torch.device) -> tuple[WorkerConfig, list[str]]:
    """The same where drafts can be verified; without drafts, and with a note, for a model that cannot take one back.

    Raises :class:`.errors.SetupError` where they are asked for in vain.
    """
    if config.speculative is None:
        return config, []
    if not isinstance(family, Text):
        raise SetupError(f"{_OPTION}: the model draws no text of its own, which alone is drafted; leave it out")
    if device.type != "cpu":
        raise SetupError(f"{_OPTION}: drafts are verified on a CPU, not on {device.type} yet; leave it out")
    if config.return_routed_experts:
        raise SetupError(f"{_OPTION}: experts of drafts are not told apart; leave --enable-return-routed-experts out")
    if family.spec.states:
        note = f"{_OPTION} has no effect: layers with a recurrent state cannot take drafts back"
        return msgspec.structs.replace(config, speculative=None), [note]
    return config, []


def make_proposer(config: WorkerConfig) -> Proposer | None:
    """None where no drafts are asked for."""
    asked = config.speculative
    if asked is None:
        return None
    if asked.method == "suffix":
        return SuffixProposer(config.max_num_seqs, asked)
    return NgramProposer(
        config.max_num_seqs, asked.num_speculative_tokens, asked.prompt_lookup_min, asked.prompt_lookup_max
    )
