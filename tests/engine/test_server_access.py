"""Who may ask the server, under which names and paths, and when it does not start at all."""

import signal
import subprocess
import sys
from subprocess import PIPE

import openai
import pytest
from httpserving import NAME, SHAPE, answered, get, letters, post, serving, tiny_engine
from transformers import LlamaConfig, LlamaForCausalLM

from recguide.sim.policies import fixed

pytestmark = pytest.mark.usefixtures("one_thread")
CHAT = "/v1/chat/completions"
ASKED = {"model": NAME, "messages": [{"role": "user", "content": "ab"}], "max_tokens": 1}


@pytest.fixture(scope="module")
def server():
    with serving(tiny_engine(fixed(4))) as running:
        yield running


@pytest.fixture(scope="module")
def locked():
    with serving(tiny_engine(fixed(4)), key="a secret") as running:
        yield running


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", CHAT, 405),
        ("DELETE", CHAT, 405),
        ("OPTIONS", CHAT, 405),
        ("POST", "/v1/models", 405),
        ("BREW", "/health", 405),
        ("GET", "/", 404),
        ("GET", "/v1/chat/completions/", 404),
        ("GET", "/v1/../../etc/passwd", 404),
        ("GET", "//evil.example/v1/models", 404),
        ("GET", "/v1/models/other", 404),
        ("GET", "/v1/models/%0d%0ax-evil:%201", 404),
    ],
)
def test_other_methods_and_paths_are_refused(server, method, path, status) -> None:
    found, headers, document = answered(get(server, path, method=method))
    assert found == status
    assert "x-evil" not in headers
    assert document["error"]["type"] == "invalid_request_error"
    assert status != 405 or headers["allow"] in ("POST", "GET, HEAD", "HEAD, GET")


@pytest.mark.parametrize(
    ("given", "status"),
    [("", 401), ("Bearer wrong", 401), ("Basic a secret", 401), ("Bearer", 401), ("Bearer a secret", 200)],
)
def test_with_a_key_only_who_knows_it_comes_in(locked, given, status) -> None:
    # whose name the host has does not matter then
    headers = ("host: any.example", *([f"authorization: {given}"] if given else []))
    for path in ("/v1/models", "/metrics"):
        response = get(locked, path, *headers)
        assert int(response.split()[1]) == status
        assert b"a secret" not in response
    assert get(locked, "/health", "host: any.example").startswith(b"HTTP/1.1 200")
    found, _, document = post(locked, CHAT, ASKED, "authorization: Bearer wrong")
    assert (found, document["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("LOCALHOST", 200),
        ("evil.example", 400),
        ("evil.example:8000", 400),
        ("127.0.0.1.evil.example", 400),
        ("localhost@evil.example", 400),
        ("", 400),
    ],
)
def test_without_a_key_only_this_machines_names_are_answered_to(server, host, status) -> None:
    assert int(get(server, "/v1/models", f"host: {host}").split()[1]) == status


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--host", "0.0.0.0"), "--host: found '0.0.0.0', allowed: one of this machine, or --api-key beside it"),
        (("--host", "example.org"), "--host: found 'example.org'"),
        (("--api-key", "ä"), "--api-key: found one that no header can carry"),
        (("--api-key", ""), "--api-key: found one that no header can carry"),
        (("--dtype", "int8"), "--dtype: found 'int8'"),
        (("--block-sizes", "8,4"), "--block-sizes: found '8,4'"),
        (("--port", "0"), "model: found 'nld-3b', allowed: one with a tokenizer"),
    ],
)
def test_a_command_that_cannot_serve_says_why(recguide, arguments, words) -> None:
    done = recguide("serve", "nld-3b", *arguments)
    assert done.code == 2
    assert words in done.stderr
    assert done.stdout == ""


def test_a_port_that_is_taken_is_told_before_the_model_is_read(recguide, server) -> None:
    done = recguide("serve", "no-such-model", "--port", server.port)
    assert done.code == 2
    assert f"--port {server.port}: Address already in use" in done.stderr


@pytest.fixture
def folder(tmp_path):
    """A model directory: random weights, and letters for tokens."""
    path = tmp_path / "tiny-llama"
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    more = {"intermediate_size": 24, "vocab_size": SHAPE.vocab_size, "max_position_embeddings": 64, "eos_token_id": 1}
    config = LlamaConfig(**shape, **more, initializer_range=0.5, mask_token_id=SHAPE.mask_id)
    LlamaForCausalLM(config).save_pretrained(path)
    (path / "tokenizer.json").write_text(letters().to_json(), encoding="utf-8")
    return path


def test_the_command_serves_until_it_is_told_to_end(folder) -> None:
    command = [sys.executable, "-c", "from recguide.sim.cli import main; main()", "serve", str(folder)]
    options = ["--port", "0", "--device", "cpu", "--dtype", "fp32", "--max-num-seqs", "2", "--temperature", "0"]
    with subprocess.Popen([*command, *options], stdout=PIPE, stderr=PIPE, text=True) as process:
        assert process.stderr is not None
        told = process.stderr.readline()
        assert told.startswith("recguide serve: tiny-llama under fixed:16 at http://127.0.0.1:"), told
        url = told.split(" at ")[1].split(",")[0]
        with openai.OpenAI(base_url=url, api_key="none", max_retries=20) as client:
            answers = [client.completions.create(model="tiny-llama", prompt="one two", max_tokens=9) for _ in range(2)]
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert answers[0].choices == answers[1].choices
    assert (process.returncode, out, err) == (0, "", "recguide serve: ended\n")


@pytest.mark.parametrize("words", [["--help"], ["serve", "--help"]])
def test_help_loads_neither_torch_nor_the_server(words) -> None:
    code = f"""
import sys
from recguide.sim.cli import main
sys.argv = ["recguide", *{words}]
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
loaded = [name for name in ("torch", "starlette", "uvicorn", "prometheus_client") if name in sys.modules]
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "serve" in done.stdout
