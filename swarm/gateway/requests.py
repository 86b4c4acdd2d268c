"""A request's body, parsed once into frozen types. What is not supported is refused by name, never ignored."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from swarm.client.request import Options
from swarm.core.limits import MAX_LOGIT_BIAS, MAX_TOP_LOGPROBS, MAX_VOCABULARY
from swarm.gateway.errors import HttpError, bad_request
from swarm.gateway.options import (
    MAX_CHOICES,
    MAX_LEGACY_LOGPROBS,
    MAX_MESSAGES,
    MAX_STOP_CHARS,
    MAX_STOPS,
    MAX_USER_CHARS,
)

LEGACY_NEW_TOKENS = 16
"""The length of a text completion that asks for none, as the OpenAI API has it."""

NO_OPS: Mapping[str, Sequence[object]] = {
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
}
"""Fields that are not supported, with the values that ask for nothing: clients send them all the same."""

Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
Stop = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_STOP_CHARS)]
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=MAX_VOCABULARY)]
Prompt = str | tuple[int, ...]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``include_usage``: a last chunk without choices tells what was used."""

    include_usage: bool = False


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """A piece of a message; only text."""

    text: str


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message of a chat. ``developer`` is what newer clients call ``system``."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | tuple[Part, ...]

    @property
    def plain(self) -> dict[str, str]:
        """As a chat template takes it."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What both kinds of request have in common, with the OpenAI API's defaults; ``top_k`` and ``repetition_penalty``
    are additions.
    """

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=400)]
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: Stop | Annotated[tuple[Stop, ...], msgspec.Meta(max_length=MAX_STOPS)] = ()
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] = 1.0
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=0, le=MAX_VOCABULARY)] = 0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, msgspec.Meta(ge=0.01, le=100)] = 1.0
    logit_bias: Annotated[
        dict[str, Annotated[float, msgspec.Meta(ge=-100, le=100)]], msgspec.Meta(max_length=MAX_LOGIT_BIAS)
    ] = {}
    max_tokens: Positive | None = None
    user: Annotated[str, msgspec.Meta(max_length=MAX_USER_CHARS)] | None = None
    """Whom the client asks for; it changes no answer, and nobody is told."""


class ChatBody(_Body, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: Annotated[tuple[Message, ...], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Positive | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None


class TextBody(_Body, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``POST /v1/completions``. ``prompt`` is read by ``_prompts``: msgspec cannot tell its forms apart."""

    prompt: Any
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_LEGACY_LOGPROBS)] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A request in the client's own terms: ``n`` answers to a chat, or to each of several prompts.

    ``new_tokens`` None leaves the length to the gateway. ``options`` are those of ``generate``, without the prompt, the
    length and the sample.
    """

    model: str
    messages: tuple[Message, ...]
    prompts: tuple[Prompt, ...]
    n: int
    new_tokens: int | None
    options: Options
    stream: bool
    include_usage: bool

    @property
    def prompt_field(self) -> str:
        """What the request calls its prompt."""
        return "messages" if self.messages else "prompt"


def read_chat(body: bytes) -> Asked:
    """A chat request; raises ``HttpError`` 400 that names the field which is wrong or not supported."""
    chat = _parse(body, ChatBody)
    if chat.max_tokens is not None and chat.max_completion_tokens is not None:
        raise bad_request("max_tokens is the old name of max_completion_tokens; give one of them", "max_tokens")
    if chat.top_logprobs is not None and not chat.logprobs:
        raise bad_request("top_logprobs needs logprobs: true", "top_logprobs")
    options = _options(chat)
    if chat.logprobs:
        options["logprobs"] = chat.top_logprobs or 0
    length = chat.max_completion_tokens or chat.max_tokens
    return _asked(chat, options, messages=chat.messages, length=length)


def read_text(body: bytes) -> Asked:
    """A text completion request; raises as ``read_chat`` does."""
    text = _parse(body, TextBody)
    prompts = _prompts(text.prompt)
    if len(prompts) * text.n > MAX_CHOICES:
        raise bad_request(f"{len(prompts)} prompts with {text.n} answers each: at most {MAX_CHOICES} in all", "n")
    options = _options(text)
    if text.logprobs is not None:
        options["logprobs"] = text.logprobs
    return _asked(text, options, prompts=prompts, length=text.max_tokens or LEGACY_NEW_TOKENS)


def _asked(
    body: _Body,
    options: Options,
    *,
    messages: tuple[Message, ...] = (),
    prompts: tuple[Prompt, ...] = (),
    length: int | None,
) -> Asked:
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options goes with stream: true", "stream_options")
    usage = body.stream_options is not None and body.stream_options.include_usage
    return Asked(body.model, messages, prompts, body.n, length, options, body.stream, usage)


def _options(body: _Body) -> Options:
    options = Options(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        logit_bias=_bias(body.logit_bias),
        stop=body.stop,
    )
    if body.seed is not None:
        options["seed"] = body.seed
    return options


def _bias(given: Mapping[str, float]) -> dict[int, float]:
    bias = {}
    for key, value in given.items():
        if not re.fullmatch("[0-9]{1,9}", key):
            raise bad_request(f"logit_bias names token {key[:40]!r}: its keys are token ids", "logit_bias")
        bias[int(key)] = float(value)
    return bias


def _prompts(given: object) -> tuple[Prompt, ...]:
    """A text, token ids, or a list of either."""
    if isinstance(given, str):
        return (given,)
    if isinstance(given, list) and given:
        items = given if isinstance(given[0], str | list) else [given]
        if len(items) > MAX_CHOICES:
            raise bad_request(f"{len(items)} prompts: at most {MAX_CHOICES}", "prompt")
        return tuple(_one_prompt(item) for item in items)
    raise bad_request("prompt must be text, token ids, or a list of either", "prompt", "invalid_type")


def _one_prompt(item: object) -> Prompt:
    try:
        return msgspec.convert(item, str | tuple[TokenId, ...])
    except msgspec.ValidationError as error:
        text = str(error).partition(" - at ")[0]
        raise bad_request(f"prompt: {text}", "prompt", "invalid_type") from error


B = TypeVar("B", bound=_Body)


def _parse(body: bytes, kind: type[B]) -> B:
    try:
        given = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(400, f"the body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(given, dict):
        raise HttpError(400, "the body is not a JSON object", code="invalid_json")
    fields = _supported({key: value for key, value in given.items() if value is not None}, kind)
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error


def _supported(given: dict[str, Any], kind: type[_Body]) -> dict[str, Any]:
    """The fields this gateway knows, without those that ask for nothing; ``HttpError`` 400 names all the others."""
    others = {key for key in given if key not in kind.__struct_fields__ and not _asks_nothing(key, given[key])}
    if others:
        names = ", ".join(repr(key[:40]) for key in sorted(others)[:10])
        raise bad_request(f"not supported here: {names}; leave it out", min(others)[:40], "unsupported_parameter")
    fields = {key: value for key, value in given.items() if key in kind.__struct_fields__}
    if isinstance(messages := fields.get("messages"), list):
        fields["messages"] = [_without_empty(message) for message in messages]
    return fields


def _asks_nothing(key: str, value: object) -> bool:
    return any(type(value) is type(nothing) and value == nothing for nothing in NO_OPS.get(key, ()))


def _without_empty(message: object) -> object:
    """A message that a client got from an answer and sends again holds nulls and empty lists."""
    if not isinstance(message, dict):
        return message
    return {key: value for key, value in message.items() if value is not None and (key == "content" or value != [])}


def _invalid(text: str) -> HttpError:
    """msgspec's error, with the field it names: ``Expected `float`, got `str` - at `$.top_p```."""
    what, _, where = text.partition(" - at ")
    found = re.search(r"`\$\.?([^`]*)`", where)
    param = found[1].replace("[...]", "") if found else ""
    missing = re.fullmatch(r"Object missing required field `([^`]+)`", what)
    unknown = re.fullmatch(r"Object contains unknown field `([^`]+)`", what)
    if named := missing or unknown:
        param = f"{param}.{named[1]}" if param else named[1]
        code = "missing_required_parameter" if missing else "unsupported_parameter"
        words = "is missing" if missing else "is not supported here; leave it out"
        return bad_request(f"{param[:80]} {words}", param[:80], code)
    return bad_request(f"{param[:80]}: {what[:300]}" if param else what[:300], param[:80] or None)
