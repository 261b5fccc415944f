"""The server as OpenAI's own client sees it."""

import openai
import pytest
from httpclients import chat, client_of, told
from httpserving import NAME, get, letters, serving, tiny_engine

from recguide.sim.overlap import Overlap
from recguide.sim.policies import fixed

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def server():
    with serving(tiny_engine(fixed(4))) as running:
        yield running


@pytest.fixture
def client(server):
    with client_of(server) as made:
        yield made


def test_a_chat_gets_the_engines_own_answer_and_its_counts(client) -> None:
    answer = chat(client, max_completion_tokens=40)
    wanted = told("user:say it\na:", 40)
    choice = answer.choices[0]
    assert (choice.message.content, choice.message.role, choice.finish_reason) == (wanted.text, "assistant", "length")
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (14, 40, 54)
    assert answer.object == "chat.completion"
    assert answer.model == NAME


def test_an_output_that_ends_by_itself_says_stop(client) -> None:
    choice = chat(client, extra_body=None).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.content == told("user:say it\na:", 40).text.partition("p")[0] + "p"


def test_a_conversation_of_several_messages_goes_through_the_template(client) -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None, "annotations": []},
        {"role": "user", "name": "somebody", "content": "d"},
    ]
    answer = chat(client, messages=messages, max_tokens=20)
    wanted = told("system:be brief\nuser:ab\nassistant:c\nuser:d\na:", 20)
    assert answer.choices[0].message.content == wanted.text


@pytest.mark.parametrize("include_usage", [False, True])
def test_a_stream_brings_the_same_answer_in_chunks(client, include_usage) -> None:
    options = {"stream_options": {"include_usage": True}} if include_usage else {}
    chunks = list(chat(client, max_tokens=40, stream=True, **options))
    if include_usage:
        *chunks, last = chunks
        assert last.choices == []
        assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (14, 40)
    assert all(chunk.usage is None for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == told("user:say it\na:", 40).text
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize("prompt", ["once upon", ["once upon"], letters().encode("once upon")])
def test_a_text_is_gone_on_with(client, prompt) -> None:
    fields = {"model": NAME, "prompt": prompt, "temperature": 0, "extra_body": {"ignore_eos": True}}
    whole = client.completions.create(**fields)
    wanted = told("once upon", 16)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (wanted.text, "length")
    assert whole.usage.completion_tokens == 16
    chunks = list(client.completions.create(stream=True, **fields))
    assert "".join(chunk.choices[0].text for chunk in chunks) == wanted.text


def test_a_stop_string_ends_the_text_before_it_and_the_request(client, server) -> None:
    stop = told("user:say it\na:", 40).text[20:23]
    wanted = told("user:say it\na:", 60, [stop, "@"])
    answer = chat(client, max_tokens=400, stop=[stop, "@"])
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (wanted.text, "stop")
    assert answer.usage.completion_tokens < 50
    chunks = list(chat(client, max_tokens=400, stop=stop, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == wanted.text
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert server.idle()


def test_a_seed_gives_the_same_sample_again_and_others_another(client) -> None:
    texts = [
        chat(client, max_tokens=60, temperature=1.5, **seed).choices[0].message.content
        for seed in ({"seed": 7}, {"seed": 7}, {"seed": -8}, {}, {})
    ]
    assert texts[0] == texts[1]
    assert len(set(texts)) == 4


def test_a_policy_for_one_request_changes_its_rounds_and_not_its_text(client, server) -> None:
    def rounds(policy):
        before = server.engine.log.totals.rounds
        extra = {"ignore_eos": True, "recguide": {"policy": policy}}
        text = chat(client, max_tokens=60, extra_body=extra).choices[0].message.content
        return text, server.engine.log.totals.rounds - before

    found = {policy: rounds(policy) for policy in (None, "ar", "fixed:2", "fixed:8")}
    assert len({text for text, _ in found.values()}) == 1
    assert found["ar"][1] == 0
    assert found["fixed:2"][1] > 0
    assert found[None][1] > 0


def test_a_policy_that_is_no_choice_of_blocks_takes_no_other_for_one_request() -> None:
    with (
        serving(tiny_engine(Overlap(4))) as server,
        client_of(server) as client,
    ):
        assert chat(client, max_tokens=10).usage.completion_tokens == 10
        with pytest.raises(openai.BadRequestError, match=r"recguide\.policy: found 'ar', allowed: null: the policy"):
            chat(client, extra_body={"recguide": {"policy": "ar"}})


def test_the_model_is_listed(client) -> None:
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).owned_by == "recguide"
    with pytest.raises(openai.NotFoundError, match="model: found 'gpt-4', allowed: tiny"):
        client.models.retrieve("gpt-4")
    with pytest.raises(openai.NotFoundError, match="model: found 'gpt-4'"):
        chat(client, model="gpt-4")


def test_metrics_count_what_was_served(client, server) -> None:
    def figures():
        lines = server.service.metrics.text().decode().splitlines()
        return {key: float(value) for key, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}

    before = figures()
    chat(client, max_tokens=30)
    assert server.idle()
    after = figures()
    name = 'recguide_http_responses_total{path="/v1/chat/completions",status="200"}'
    assert after[name] == before.get(name, 0.0) + 1
    assert after["recguide_output_tokens_total"] == before["recguide_output_tokens_total"] + 30
    for name in ("time_to_first_token", "request_latency"):
        key = f"recguide_{name}_seconds_count"
        assert after[key] == before[key] + 1
    assert after["recguide_kv_pages_free"] == after["recguide_kv_pages"]


def test_a_request_whose_logits_are_nan_gets_an_error_and_the_others_go_on() -> None:
    engine = tiny_engine(fixed(4))
    engine.decoder.embed_tokens[letters().encode("z")[0]] = float("nan")
    with serving(engine) as server, client_of(server) as client:
        with pytest.raises(openai.InternalServerError, match=r"failed at this request: the .* logits are NaN"):
            chat(client, messages=[{"role": "user", "content": "zz"}])
        with pytest.raises(openai.APIError, match="logits are NaN"):
            list(chat(client, messages=[{"role": "user", "content": "zz"}], stream=True))
        assert server.idle()
        assert client.models.list()


def test_an_engine_that_stopped_is_told_and_unhealthy() -> None:
    def broken(seen):
        raise ArithmeticError("a policy's own fault")

    with serving(tiny_engine(broken)) as server, client_of(server) as client:
        for _ in range(2):
            with pytest.raises(openai.InternalServerError, match="the engine has stopped") as error:
                chat(client)
            assert error.value.status_code == 503
        assert get(server, "/health").startswith(b"HTTP/1.1 503")
