"""OpenAI's own clients for a server under test, and what its engine would say as a function."""

import openai
from httpserving import NAME, letters, tiny_engine

from recguide.engine.api import generate
from recguide.engine.requests import Wish
from recguide.sim.policies import fixed

ASKED = [{"role": "user", "content": "say it"}]


def client_of(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30)


def several_of(server):
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30)


def told(prompt: str, tokens: int, stop=()):
    """What the engine says as a function."""
    ids = letters().encode(prompt)
    (answer,) = generate(tiny_engine(fixed(4)), [ids], Wish(tokens, eos_ids=()), letters(), stop)
    return answer


def chat(client, **fields):
    fields = {"model": NAME, "messages": ASKED, "temperature": 0, "extra_body": {"ignore_eos": True}} | fields
    return client.chat.completions.create(**fields)
