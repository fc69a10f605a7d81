"""Conversations out of files, in each of the forms that go about."""

import json
from pathlib import Path
from typing import Any

import pytest

from stentor.loadtest.serving.api import Message
from stentor.loadtest.serving.dataset import Dataset
from stentor.loadtest.serving.lengths import constant
from stentor.loadtest.tool import UsageError

SHAREGPT = {
    "id": "x",
    "conversations": [
        {"from": "system", "value": "Be kind."},
        {"from": "human", "value": "One"},
        {"from": "gpt", "value": "a" * 40},
        {"from": "human", "value": "Two"},
        {"from": "gpt", "value": "b" * 80},
    ],
}
MESSAGES = {
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {}}]},
        {"role": "assistant", "content": "I see."},
    ]
}
PROMPT = {"prompt": "Write", "output_tokens": 9}


def _dataset(folder: Path, entries: list[Any], lines: bool = False, turns: float = 9, **options: Any) -> Dataset:
    path = folder / "data.json"
    path.write_text("\n".join(map(json.dumps, entries)) + "\n\n" if lines else json.dumps(entries))
    return Dataset(path, options.pop("seed", 0), constant(turns), options.pop("outputs", None), constant(0))


@pytest.mark.parametrize("lines", [False, True])
def test_sharegpt_s_form_is_turns_with_the_length_of_their_answers(tmp_path: Path, lines: bool) -> None:
    session = _dataset(tmp_path, [SHAREGPT], lines).session(0)
    assert session.opening == [Message("system", "Be kind.")]
    assert [(turn.text, turn.output_tokens) for turn in session.turns] == [("One", 10), ("Two", 20)]


def test_messages_keep_the_text_of_their_parts(tmp_path: Path) -> None:
    (turn,) = _dataset(tmp_path, [MESSAGES]).session(0).turns
    assert (turn.text, turn.output_tokens) == ("Look", 1)


def test_a_prompt_a_line_may_say_how_long_its_answer_is(tmp_path: Path) -> None:
    dataset = _dataset(tmp_path, [PROMPT], lines=True)
    assert dataset.session(0).turns[0].output_tokens == 9
    assert _dataset(tmp_path, [{"prompt": "Write", "max_tokens": 2}]).session(0).turns[0].output_tokens == 2


def test_turns_and_lengths_can_be_set_from_outside(tmp_path: Path) -> None:
    session = _dataset(tmp_path, [SHAREGPT], turns=1, outputs=constant(77)).session(0)
    assert [(turn.text, turn.output_tokens) for turn in session.turns] == [("One", 77)]


def test_the_seed_shuffles_and_what_runs_out_begins_again(tmp_path: Path) -> None:
    entries = [{"prompt": f"number {number}"} for number in range(30)]
    first, same, other = (_dataset(tmp_path, entries, seed=seed) for seed in (3, 3, 4))
    asked = [first.session(number) for number in range(60)]
    assert asked == [same.session(number) for number in range(60)]
    assert asked[:30] != [other.session(number) for number in range(30)]
    assert asked[:30] == asked[30:]
    assert len({session.turns[0].text for session in asked}) == 30
    assert first.session(-1) == asked[29], "warm-up takes from the other end"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "holds no conversation"),
        ('{"prompt": ""}\n{"messages": []}', "holds no conversation"),
        ('{"prompt": "a"}\n{"prompt"', "line 2"),
        ('[{"prompt": 3}]', "no conversation: Expected `str`"),
    ],
)
def test_a_file_without_conversations_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "broken"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        Dataset(path, 0, constant(1), None, constant(0))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*nowhere"):
        Dataset(tmp_path / "nowhere", 0, constant(1), None, constant(0))
