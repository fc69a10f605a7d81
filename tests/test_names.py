"""Names that the project has given up for those of its field do not come back."""

import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("engine", "kernels", "loadtest", "protocols", "server")
GIVEN_UP = {
    "Ahead": "AsyncExecutor",
    "Answering": "ResponseManager",
    "AudioHold": "AudioBudget",
    "BRAIN": "BF16",
    "BehindPrefix": "RootPathMiddleware",
    "Catalogue": "ModelRegistry",
    "ChoiceRule": "TokenConstraint",
    "ChoiceState": "SequenceState",
    "Door": "AccessControl",
    "Draft": "DecodingResult",
    "DrawRules": "SlotParams",
    "Ear": "WindowDecoder",
    "EncodingCache": "EncoderCache",
    "Entrance": "GrammarQueue",
    "FORMS": "ACTIVATION_FORMATS",
    "Flight": "InFlightStep",
    "Flown": "InFlightSequence",
    "Foster": "AdoptedChild",
    "HeardTurn": "TranscribedAudio",
    "HearingRunner": "EncoderDecoderRunner",
    "InFlightChoice": "InFlightSequence",
    "InTurn": "SyncExecutor",
    "KeptWeights": "CachedWeights",
    "LADDER": "TEMPERATURE_FALLBACK",
    "NameRequests": "RequestIdMiddleware",
    "Neighbours": "CoTenants",
    "NewRules": "NewSamplingParams",
    "Nursery": "ForkServer",
    "Outbox": "SendQueue",
    "PagesAhead": "Prefault",
    "Permit": "QueueSlot",
    "Placement": "LayerContext",
    "Pulse": "Heartbeat",
    "REACH": "MIN_P_THRESHOLD",
    "RuleBroken": "ConstraintBroken",
    "RuleWrite": "TableWrite",
    "Seal": "EncryptedContent",
    "SessionEars": "InputAudioPipeline",
    "StepDraft": "StepBuilder",
    "Stepper": "Executor",
    "Suspicion": "CrashBisector",
    "Ticket": "RequestContext",
    "TurnHearing": "IncrementalTranscriber",
    "Voicing": "SpeechStream",
    "_by_label": "_by_hash",
    "_entrance": "_grammar_queue",
    "around": "forward_bidirectional",
    "brain_cache": "bf16_cache",
    "breathe": "yield_device",
    "catalogue": "registry",
    "computed_len": "num_scheduled_tokens",
    "entrance": "input_projection",
    "entrances": "input_projections",
    "follows_rule": "is_constrained",
    "form_of": "activation_format_of",
    "hold_prompt": "pin_shared_prefix",
    "host_starts": "host_cu_seqlens",
    "in_our_words": "map_response_fields",
    "incarnation": "row_generation",
    "judge_drafts": "rejection_sample",
    "labelled": "hashed",
    "labelled_blocks": "num_hashed_blocks",
    "make_room": "preempt_for",
    "native_obstacle": "native_unsupported_reason",
    "nursery": "fork_server",
    "obstacle": "unsupported_reason",
    "obstacles": "unsupported_reasons",
    "open_door": "open_access",
    "open_kept": "open_cached",
    "placement": "layer_context",
    "race": "gumbel_max",
    "race_residual": "gumbel_max_residual",
    "reach_of": "min_p_threshold_of",
    "rules_of": "constraints_of",
    "set_up_hearing": "set_up_encoder_decoder",
    "tops": "top_logprobs",
    "triton_obstacle": "triton_unsupported_reason",
    "written_len": "num_computed_tokens",
}
ANY_OF_THEM = re.compile(rf"\b(?:{'|'.join(GIVEN_UP)})\b")


def test_no_identifier_has_a_name_that_was_given_up() -> None:
    found = []
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for token in tokenize.generate_tokens(io.StringIO(text).readline) if ANY_OF_THEM.search(text) else ():
            if token.type == tokenize.NAME and token.string in GIVEN_UP:
                line = f"{path.relative_to(ROOT)}:{token.start[0]}"
                found.append(f"{line}: {token.string} is called {GIVEN_UP[token.string]}")
    assert not found, "\n".join(found)
