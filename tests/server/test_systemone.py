"""``/v1/systemone``, vLLM's questions about a state, over a fake engine."""

import math
from typing import Any

import pytest

from stentor.server.text.pool import TokenizerPool
from stentor.tests.fakes import FakeEngine, fake_state, says
from stentor.tests.server.harness import in_memory
from stentor.tests.server.test_infill import with_tokens

pytestmark = pytest.mark.anyio

PATH = "/v1/systemone"
TEAM: dict[str, Any] = {
    "type": "choice",
    "instructions": "Which team?",
    "criteria": {"billing": "money", "other": None},
}
TONE: dict[str, Any] = {"type": "score", "instructions": {"how": "upset"}, "criteria": ["calm", "cross", "furious"]}
PAID: dict[str, Any] = {"type": "noul", "criteria": {"true": "it was paid"}}
YES, NO = 258, 259


async def ask(engine: FakeEngine, status: int = 200, **body: Any) -> Any:
    wanted = {"state": {"ticket": 7}, "questions": {"team": TEAM}, **body}
    pool = TokenizerPool(with_tokens("yes", "no"))
    async with in_memory(fake_state(engine, pool=pool, vocab_size=300)) as client:
        response = await client.post(PATH, json=wanted)
    assert response.status_code == status, response.text
    return response.json()


def prompts_of(engine: FakeEngine) -> list[str]:
    """Special tokens are a null byte."""
    return [bytes(one if one < 256 else 0 for one in stream.prompt).decode() for stream in engine.streams]


async def test_questions_are_answered_by_name_with_what_the_labels_weigh() -> None:
    engine = FakeEngine(answer=lambda _prompt, _index: [YES])
    answer = await ask(engine, questions={"team": TEAM, "tone": TONE, "paid": PAID}, request_id="mine")
    assert (answer["object"], answer["id"]) == ("structured_decision", "decision-mine")
    assert list(answer["answers"]) == ["team", "tone", "paid"]
    team, tone, paid = answer["answers"].values()
    second = math.exp(-0.5)
    billing = 1 / (1 + second)
    assert (team["type"], team["choice"]) == ("choice", "billing")
    assert team["probabilities"] == pytest.approx({"billing": billing, "other": 1 - billing})
    mass = answer["diagnostics"]["team"]
    assert mass == {"label_mass": pytest.approx(math.exp(-32.5) * (1 + second)), "argmax_is_label": False}
    assert team["confidence"] == pytest.approx(billing * mass["label_mass"])
    assert tone["legend"] == {"0": "calm", "1": "cross", "2": "furious"}
    assert tone["score"] == pytest.approx(tone["probabilities"]["1"] + 2 * tone["probabilities"]["2"])
    assert paid["noul"] == paid["probabilities"]["yes"] == pytest.approx(1)
    assert answer["diagnostics"]["paid"]["argmax_is_label"] is True
    prompts = prompts_of(engine)
    assert prompts[0].startswith('<user>{"ticket":7}\n\nWhich team?\nA: billing: money\nB: other\n')
    assert '{"how":"upset"}\n0: calm\n1: cross\n2: furious\n' in prompts[1]
    assert answer["usage"] == {"input_tokens": sum(map(len, prompts)), "output_tokens": 3}


async def test_instructions_stand_before_the_state() -> None:
    engine = FakeEngine(answer=says("A"))
    await ask(
        engine, state="late", instructions="Be fair.", questions={"one": {"type": "choice", "criteria": {"a": 1}}}
    )
    (prompt,) = prompts_of(engine)
    assert prompt.index("Be fair.") < prompt.index("late\n\nA: a: 1\n")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"questions": {}}, "questions"),
        ({"questions": {"q": {**TEAM, "criteria": {}}}}, "questions.q.criteria"),
        ({"questions": {"q": {**TEAM, "criteria": {str(at): None for at in range(27)}}}}, "questions.q.criteria"),
        ({"questions": {"q": {**TONE, "criteria": ["calm"]}}}, "questions.q.criteria"),
        ({"questions": {"q": {**PAID, "criteria": ["yes", "no"]}}}, "questions.q.criteria"),
        ({"questions": {f"q{at}": PAID for at in range(1025)}}, "questions"),
        ({"chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs"),
        ({"joint": True}, "joint"),
        ({"images": ["data:,"]}, "images[0]"),
        ({"state": "x" * 600}, "state"),
    ],
)
async def test_a_wrong_field_is_named_and_nothing_is_computed(body: dict[str, Any], param: str) -> None:
    engine = FakeEngine()
    assert (await ask(engine, 400, **body))["error"]["param"] == param
    assert not engine.streams
