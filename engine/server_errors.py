"""What the server refuses, in the form in which OpenAI's API tells errors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from recguide.traces.errors import InputError

INVALID, OVERLOADED, FAULT = "invalid_request_error", "rate_limit_error", "server_error"
RETRY_AFTER_S = 1


@dataclass(eq=False)
class Refusal(Exception):  # noqa: N818 (it is told to a client, and is no error of ours)
    """An answer other than 200."""

    status: int
    message: str
    param: str | None = None
    """The field of the request that is at fault."""
    code: str | None = None
    kind: str = INVALID
    headers: Mapping[str, str] = field(default_factory=dict)


def invalid(field_name: str, found: str, allowed: str, code: str | None = None) -> Refusal:
    """400: a field holds what it must not; ``found`` in words that are safe to show."""
    return Refusal(400, f"{field_name}: found {found}, allowed: {allowed}", field_name, code)


def overloaded(what: str, code: str) -> Refusal:
    """429: there is no room for now."""
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    return Refusal(429, what, None, code, OVERLOADED, headers)


def fault(message: str, status: int = 500, code: str | None = None) -> Refusal:
    """The request was all right, and still has no answer."""
    return Refusal(status, message, None, code, FAULT)


def shown(found: object) -> str:
    """A value of the request as a message shows it: on one line, and short."""
    if isinstance(found, list):
        return f"a list of {len(found)}"
    text = "an object" if isinstance(found, dict) else ascii(found)
    return text if len(text) <= 60 else text[:57] + "..."


def error_body(refusal: Refusal) -> dict[str, Any]:
    """The JSON object of an error."""
    return {
        "error": {
            "message": refusal.message,
            "type": refusal.kind,
            "param": refusal.param,
            "code": refusal.code,
        }
    }


def refused(refusal: Refusal) -> JSONResponse:
    """The response that tells it."""
    return JSONResponse(error_body(refusal), refusal.status, dict(refusal.headers))


def as_refusal(error: Exception) -> Refusal:
    """What a client is told of an error; of a fault of ours no more than that there is one."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, InputError):
        name, colon, _ = str(error).partition(":")
        return Refusal(400, str(error), name if colon and name.isidentifier() else None)
    if isinstance(error, HTTPException):
        headers = dict(error.headers or {})
        return Refusal(error.status_code, _routing_words(error, headers), headers=headers)
    return fault("the server failed at this request; its own log says why")


def _routing_words(error: HTTPException, headers: Mapping[str, str]) -> str:
    if error.status_code == 405:
        return f"method: not one of this path; allowed: {headers.get('Allow', 'none')}"
    return (
        f"path: {error.detail.lower()}; allowed: /v1/chat/completions, /v1/completions, /v1/models, /health, /metrics"
    )


async def tell(_request: Request, error: Exception) -> JSONResponse:
    """Starlette's handler of all errors."""
    return refused(as_refusal(error))
