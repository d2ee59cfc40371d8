"""The few requests that the harness sends itself: which model is served, and prompts to warm up with."""

import http.client
import json
import random
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, Final, cast

from harness.errors import HarnessError

_TIMEOUT_S: Final = 300.0
# Nothing is meant by them; what matters is that no two prompts begin alike.
_WORDS: Final = ("river", "stone", "table", "green", "quick", "house", "north", "paper", "seven", "light")


class RequestError(HarnessError):
    """A server did not answer a request of the harness, or not as an OpenAI server does."""


def served_model(base_url: str) -> str:
    """Return the name of the first model that a server offers.

    Raises:
        RequestError: It offers none, or does not answer.
    """
    answer = _ask(f"{base_url}/v1/models", None)
    try:
        return str(answer["data"][0]["id"])
    except (KeyError, IndexError, TypeError) as error:
        raise RequestError(f"{base_url}/v1/models names no model: {answer!r}") from error


def complete(base_url: str, model_name: str, prompt: str, output_tokens: int) -> None:
    """Have a server answer one prompt.

    Raises:
        RequestError: It does not.
    """
    body = {"model": model_name, "prompt": prompt, "max_tokens": output_tokens, "temperature": 0}
    _ask(f"{base_url}/v1/completions", {**body, "ignore_eos": True})


def unseen_prompt(words: int) -> str:
    """Return a prompt that no server has seen before."""
    words_of = random.SystemRandom()
    return " ".join(words_of.choice(_WORDS) for _ in range(words))


def _ask(url: str, body: Mapping[str, object] | None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            answer = json.loads(response.read())
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        raise RequestError(f"no answer from {url}: {error}") from error
    if not isinstance(answer, dict):
        raise RequestError(f"{url} answered {str(answer)[:200]!r}, not an object")
    return cast("dict[str, Any]", answer)
