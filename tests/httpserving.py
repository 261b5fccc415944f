"""A server of a tiny model for tests: real HTTP on a free port of this machine, in a thread."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import tokenizers
import torch
from tiny import TINY
from tokenizers import AddedToken, decoders, models

from recguide.engine.server_answers import Service
from recguide.engine.server_app import make_app
from recguide.engine.server_connections import listening, make_server
from recguide.engine.server_limits import ServerLimits
from recguide.engine.server_run import service_of
from recguide.engine.serving import Engine, EngineConfig
from recguide.engine.shapes import random_decoder
from recguide.engine.tokenizer import Tokenizer
from recguide.sim.memory import Limits
from recguide.sim.methods import Policy

LETTERS = "abcdefghijklmnopqrstuvwxyz .,:\n"
SPECIAL = ("<unk>", "<eos>", "<mask>", "<bos>")
TEMPLATE = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}a:"
CONTEXT, NAME, GRID = 512, "tiny", (2, 4, 8)
SHAPE = replace(
    TINY, num_layers=1, vocab_size=len(SPECIAL) + len(LETTERS), max_context=CONTEXT, mask_id=2, eos_ids=(1, 19)
)
"""The letter p ends outputs, too: a random model gets there soon."""


def letters(template: str | None = TEMPLATE) -> Tokenizer:
    """A tokenizer whose tokens are letters."""
    vocabulary = {token: at for at, token in enumerate((*SPECIAL, *LETTERS))}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=SPECIAL[0]))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return Tokenizer(backend, template)


def tiny_engine(policy: Policy, running: int = 8) -> Engine:
    """An engine of a random model with weights large enough to say something."""
    decoder = random_decoder(SHAPE, "cpu", torch.float32, 5)
    for parameter in decoder.parameters():
        if parameter.dim() > 1:
            parameter.mul_(15)
    return Engine(decoder, policy, EngineConfig(GRID, Limits(max_running=running, page_size=8), keep_log=False))


def unhurried(policy: Policy, pause_s: float = 0.01) -> Policy:
    """The same policy, a little later, so that a test may come in between."""

    def choose(seen):
        time.sleep(pause_s)
        return policy(seen)

    return choose


@dataclass(frozen=True)
class Running:
    """A server that runs."""

    service: Service
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def engine(self) -> Engine:
        return self.service.serving.engine

    def connect(self, data: bytes = b"", timeout: float = 20.0) -> socket.socket:
        """A bare connection on which this was sent."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout)
        connection.sendall(data)
        return connection

    def idle(self, seconds: float = 20.0) -> bool:
        """Whether, before that time is up, nobody is served and every page is free."""
        pool, until = self.engine.scheduler.pool, time.monotonic() + seconds
        while time.monotonic() < until:
            gate = self.service.gate
            if not self.engine.in_flight and pool.num_free == pool.num_pages and not (gate.requests or gate.streams):
                return True
            time.sleep(0.01)
        return False


@contextmanager
def serving(
    engine: Engine, limits: ServerLimits | None = None, key: str | None = None, drain_s: int = 5
) -> Iterator[Running]:
    """Serve with this engine as long as the context lasts."""
    service = service_of(engine, letters(), NAME, limits or ServerLimits(engine.limits.max_running or 0))
    with listening("127.0.0.1", 0) as listener:
        server = make_server(make_app(service, key), service.limits, drain_s)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            while not server.started:
                time.sleep(0.005)
            yield Running(service, listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()


def posted(path: str, body: bytes, *headers: str, kind: str = "application/json") -> bytes:
    """A POST as it goes over the wire."""
    lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-type: {kind}", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


def get(server: Running, path: str, *headers: str, method: str = "GET") -> bytes:
    """The whole response to a request without a body."""
    lines = [f"{method} {path} HTTP/1.1", *(headers or ("host: localhost",)), "connection: close", "", ""]
    return received(server.connect("\r\n".join(lines).encode()))


def received(connection: socket.socket) -> bytes:
    """Everything until the other side closes."""
    with connection:
        return b"".join(iter(lambda: connection.recv(65536), b""))


def answered(response: bytes) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Status, headers and document of a response."""
    head, _, body = response.partition(b"\r\n\r\n")
    first, *lines = head.decode("ascii").split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    return int(first.split()[1]), headers, json.loads(body)


def post(server: Running, path: str, body: Any, *headers: str, kind: str = "application/json"):
    """What becomes of a body, as bytes or as what JSON holds."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return answered(received(server.connect(posted(path, data, "connection: close", *headers, kind=kind))))
