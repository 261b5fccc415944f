"""What the server refuses, with the field, what was found and what is allowed."""

import json

import pytest
from httpserving import NAME, answered, post, posted, received, serving, tiny_engine
from hypothesis import given, settings
from hypothesis import strategies as st

from recguide.engine.server_limits import ServerLimits
from recguide.sim.policies import fixed

pytestmark = pytest.mark.usefixtures("one_thread")
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SAID = [{"role": "user", "content": "ab"}]
LIMITS = ServerLimits(8, max_body_bytes=40_000, max_prompt_tokens=300, body_s=0.5)


@pytest.fixture(scope="module")
def server():
    with serving(tiny_engine(fixed(4)), LIMITS) as running:
        yield running


def chat(**fields):
    return {"model": NAME, "messages": SAID, "max_tokens": 1} | fields


def refused(server, path, body, status=400):
    """Message and field of the error that a request gets."""
    found, _, document = post(server, path, body)
    error = document["error"]
    assert (found, set(error)) == (status, {"message", "type", "param", "code"})
    assert server.idle()
    return error["message"], error["param"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temperature": -1}, "temperature: found -1, allowed: greater than or equal to 0"),
        ({"temperature": 2.5}, "temperature: found 2.5, allowed: less than or equal to 2"),
        ({"temperature": "hot"}, "temperature: found 'hot', allowed: a valid number"),
        ({"temperature": True}, "temperature: found True, allowed: a valid number"),
        ({"max_tokens": 0}, "max_tokens: found 0, allowed: greater than or equal to 1"),
        ({"max_tokens": -5}, "max_tokens: found -5, allowed: greater than or equal to 1"),
        ({"max_tokens": 1.5}, "max_tokens: found 1.5, allowed: a valid integer"),
        ({"max_tokens": 10**30}, "max_tokens: found 1000000000000000000000000000000, allowed: 1 to 502"),
        ({"max_tokens": 503}, "max_tokens: found 503, allowed: 1 to 502, which the prompt leaves of the context"),
        ({"max_completion_tokens": 2}, "max_tokens: found 1, allowed: max_completion_tokens alone, its newer name"),
        ({"seed": 2**63}, "seed: found 9223372036854775808, allowed: less than"),
        ({"seed": 1.5}, "seed: found 1.5, allowed: a valid integer"),
        ({"n": 2}, "n: found 2, allowed: 1; the engine has nothing else"),
        ({"n": True}, "n: found True, allowed: 1"),
        ({"top_p": 0.9}, "top_p: found 0.9, allowed: 1"),
        ({"frequency_penalty": 1}, "frequency_penalty: found 1, allowed: 0"),
        ({"logprobs": True}, "logprobs: found True, allowed: False"),
        ({"logit_bias": {"5": 100}}, "logit_bias: found an object, allowed: {}"),
        ({"tools": [{"type": "function"}]}, "tools: found a list of 1, allowed: []"),
        ({"response_format": {"type": "json_object"}}, "response_format: found an object, allowed: {'type': 'text'}"),
        ({"reasoning_effort": "high"}, "reasoning_effort: found 'high', allowed: 'none'"),
        ({"stream": "yes"}, "stream: found 'yes', allowed: a valid boolean"),
        ({"stream_options": {"include_usage": True}}, "stream_options: found an object without stream"),
        ({"stop": ["a"] * 5}, "stop: found a list of 5, allowed: list should have at most 4 items"),
        ({"stop": ""}, "stop.0: found '', allowed: string should have at least 1 character"),
        ({"stop": ["a" * 257]}, "stop.0: found 'a"),
        ({"stop": 5}, "stop: found 5, allowed: a valid list"),
        (
            {"recguide": {"policy": "fixed:16"}},
            "recguide.policy: found 'fixed:16', allowed: ar, fixed:2, fixed:4, fixed:8",
        ),
        ({"recguide": {"policy": "/etc/passwd:f"}}, "recguide.policy: found '/etc/passwd:f', allowed: ar"),
        ({"recguide": {"speed": 9}}, "'recguide.speed': unknown field"),
        ({"messages": []}, "messages: found a list of 0, allowed: list should have at least 1 item"),
        ({"messages": "hi"}, "messages: found 'hi', allowed: a valid list"),
        ({"messages": [{"role": "wizard", "content": "a"}]}, "messages.0.role: found 'wizard', allowed: 'system', "),
        ({"messages": [{"role": "user"}]}, "messages.0.content: missing"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content: found None, allowed: a valid string"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages.0.content: found a part 'image_url', allowed: text alone",
        ),
        (
            {"messages": [*SAID, {"role": "assistant", "content": "", "tool_calls": [1]}]},
            "messages.1.tool_calls: found",
        ),
        ({"messages": [{"role": "user", "content": "a" * 400}]}, "messages: found 408 tokens"),
        ({"colour\r\nx-evil: 1": 1}, "'colour\\r\\nx-evil: 1': unknown field"),
        ({"prompt": "a"}, "'prompt': unknown field"),
    ],
)
def test_a_chat_that_cannot_be_served_is_refused(server, fields, words) -> None:
    message, param = refused(server, CHAT, chat(**fields))
    assert message.startswith(words)
    assert message.isprintable()
    assert param is not None


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("", "prompt: found 0 tokens, allowed: 1 to 300 tokens"),
        ("a" * 301, "prompt: found 301 tokens, allowed: 1 to 300 tokens"),
        ([], "prompt: found a list of 0, allowed: one text, or one list of ids"),
        (["a", "b"], "prompt: found a list of 2, allowed: one text, or one list of ids"),
        ([1.5], "prompt: found a list of 1, allowed: one text"),
        ([True], "prompt: found a list of 1, allowed: one text"),
        ([35], "prompt: token 35, allowed: 0 to 34"),
        ([-1], "prompt: token -1, allowed: 0 to 34"),
        ([2**70], "prompt: token 1180591620717411303424, allowed: 0 to 34"),
        (None, "prompt: found None, allowed: one text"),
        ({"a": 1}, "prompt: found an object, allowed: one text"),
    ],
)
def test_a_prompt_that_cannot_be_served_is_refused(server, prompt, words) -> None:
    message, param = refused(server, TEXT, {"model": NAME, "prompt": prompt})
    assert message.startswith(words)
    assert param == "prompt"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "body: not JSON"),
        (b"{", "body: not JSON"),
        (b"[1]", "body: found a list of 1, allowed: a JSON object"),
        (b"null", "body: found None, allowed: a JSON object"),
        (b'{"model": "\xff\xfe"}', "body: not JSON"),
        (b'{"model": "\\ud800"}', "body: not JSON"),
        (b'{"model": "tiny", "temperature": NaN}', "body: not JSON"),
        (b'{"model": "tiny", "temperature": -Infinity}', "body: not JSON"),
        (b'{"model": "tiny", "prompt": "a", "temperature": 1e999}', "temperature: found inf, allowed: "),
        (b"[" * 30_000, "body: not JSON"),
        (b'{"a":' * 5_000 + b"1" + b"}" * 5_000, "body: not JSON"),
        (b'{"model": "tiny", "seed": ' + b"9" * 20_000 + b"}", "body: not JSON"),
        (b"\x00" * 100, "body: not JSON"),
        ('{"model": "tiny"}'.encode("utf-16"), "body: not JSON"),
    ],
)
def test_what_is_no_json_is_refused(server, body, words) -> None:
    message, _ = refused(server, TEXT, body)
    assert message.startswith(words)
    assert len(message) < 200


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
names = [
    "temperature",
    "max_tokens",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "messages",
    "recguide",
    "n",
    "top_p",
    "user",
]


@settings(max_examples=80)
@given(fields=st.dictionaries(st.sampled_from(names), json_values, min_size=1, max_size=3))
def test_no_value_of_any_field_makes_the_server_fail(server, fields) -> None:
    # ASCII and NaN as Python writes them; max_tokens behind, so that what is all right is short
    response = received(server.connect(posted(CHAT, json.dumps(chat() | fields).encode(), "connection: close")))
    status = int(response.split()[1])
    assert status in (200, 400)


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "prediction": {"content": "x"}},
        {"n": 1, "top_p": 1.0, "frequency_penalty": 0, "logit_bias": {}, "tools": [], "tool_choice": "none"},
        {"n": None, "top_p": None, "stop": None, "seed": None, "temperature": None, "stream": None, "tools": None},
        {"response_format": {"type": "text"}, "modalities": ["text"], "logprobs": False, "top_k": -1, "min_p": 0.0},
        {"max_completion_tokens": 1, "max_tokens": None},
        {"stream": False, "stop": [], "recguide": {}},
    ],
)
def test_fields_that_change_nothing_are_taken(server, fields) -> None:
    status, _, document = post(server, CHAT, chat(**fields))
    assert (status, document["usage"]["completion_tokens"]) == (200, 1)


def test_a_body_beyond_the_limit_is_refused_however_it_comes(server) -> None:
    for response in (
        received(server.connect(posted(CHAT, b" " * 40_001, "connection: close"))),
        received(
            server.connect(
                posted(CHAT, b"", "connection: close", "transfer-encoding: chunked").replace(
                    b"content-length: 0\r\n", b""
                )
                + b"8000\r\n"
                + b" " * 0x8000
                + b"\r\n"
                + b"8000\r\n"
                + b" " * 0x8000
                + b"\r\n0\r\n\r\n"
            )
        ),
    ):
        status, _, document = answered(response)
        assert status == 413
        assert document["error"]["message"].endswith("allowed: 40000 bytes")
        assert document["error"]["code"] == "body_too_large"


def test_a_body_that_does_not_come_is_not_waited_for(server) -> None:
    head = posted(CHAT, b"x" * 50, "connection: close")[:-49]
    status, _, document = answered(received(server.connect(head)))
    assert (status, document["error"]["message"]) == (408, "body: not here after 0.5 s")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""])
def test_a_body_that_a_web_page_may_send_unasked_is_refused(server, kind) -> None:
    status, _, document = post(server, CHAT, chat(), kind=kind)
    assert (status, document["error"]["param"]) == (415, "content-type")
