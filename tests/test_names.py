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
    "BehindPrefix": "RootPathMiddleware",
    "Catalogue": "ModelRegistry",
    "Door": "AccessControl",
    "Draft": "DecodingResult",
    "Ear": "WindowDecoder",
    "Entrance": "GrammarQueue",
    "Flight": "InFlightStep",
    "Flown": "InFlightSequence",
    "Foster": "AdoptedChild",
    "InTurn": "SyncExecutor",
    "LADDER": "TEMPERATURE_FALLBACK",
    "NameRequests": "RequestIdMiddleware",
    "Neighbours": "CoTenants",
    "Nursery": "ForkServer",
    "Outbox": "SendQueue",
    "Permit": "QueueSlot",
    "Placement": "LayerContext",
    "Pulse": "Heartbeat",
    "Seal": "EncryptedContent",
    "SessionEars": "InputAudioPipeline",
    "StepDraft": "StepBuilder",
    "Stepper": "Executor",
    "Suspicion": "CrashBisector",
    "Ticket": "RequestContext",
    "TurnHearing": "IncrementalTranscriber",
    "Voicing": "SpeechStream",
    "computed_len": "num_scheduled_tokens",
    "hold_prompt": "pin_shared_prefix",
    "incarnation": "row_generation",
    "judge_drafts": "rejection_sample",
    "labelled_blocks": "num_hashed_blocks",
    "make_room": "preempt_for",
    "nursery": "fork_server",
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
