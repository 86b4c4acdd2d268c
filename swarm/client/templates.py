"""Chat templates: Jinja text that comes with a model, so untrusted code: it runs in a sandbox and sees plain data."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from swarm.core.errors import ConfigError, ModelError

_FAULTS = (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError)
"""What a template may raise while it renders messages it does not expect."""


class ChatTemplate:
    """One compiled template with the helpers transformers gives: ``raise_exception``, ``strftime_now``, ``tojson``,
    ``namespace``, ``dict``, loop controls and the ``generation`` tag."""

    def __init__(self, text: str, variables: Mapping[str, str], now: Callable[[], datetime] = datetime.now) -> None:
        """``variables`` are the special tokens by name (``bos_token`` …). ``ModelError`` if ``text`` does not parse."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals.update(
            raise_exception=_raise_exception,
            strftime_now=lambda form: now().strftime(form),
            namespace=_Namespace,
            dict=_dict,
        )
        try:
            self._template = environment.from_string(text)
        except (TemplateSyntaxError, RecursionError) as error:
            raise ModelError(f"the model's chat template does not parse: {error}") from error
        self._variables = dict(variables)

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool) -> str:
        """The chat as text; ``ConfigError`` if the messages are malformed or the template refuses them."""
        if isinstance(messages, str | Mapping) or not messages:
            raise ConfigError("messages must be a non-empty list", hint='like [{"role": "user", "content": "Hi"}]')
        plain = [_message(message) for message in messages]
        try:
            return self._template.render(
                **{
                    **self._variables,
                    "messages": plain,
                    "tools": None,
                    "documents": None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except _FAULTS as error:
            raise ConfigError(
                f"the model's chat template refuses these messages: {error}",
                hint="check their roles, order and content",
            ) from error


class _GenerationTag(Extension):
    """``{% generation %}…{% endgeneration %}`` marks answers for training; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012  the attribute's form is Jinja's

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Namespace(Namespace):
    """Jinja's namespace without underscored names, which a template could use to reach Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # Without a named ``self``, so that a template may store an attribute of that name.
        values = dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"a template may not store {name!r} in a namespace")


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Plain JSON: Jinja's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _message(message: object) -> dict[str, Any]:
    """A message of plain data without None values, on which many templates stumble."""
    if not isinstance(message, Mapping):
        raise ConfigError(
            f"a message is {type(message).__name__}, not a mapping", hint='like {"role": "user", "content": "Hi"}'
        )
    if not isinstance(message.get("role"), str):
        raise ConfigError("a message has no role", hint="user, assistant or system, as a string")
    return {str(key): _plain(value) for key, value in message.items() if value is not None}


def _plain(value: object) -> Any:
    """JSON types alone, exactly: a subclass could bring methods the sandbox does not know to be dangerous."""
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value) if type(value) is not kind else value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_plain(item) for item in value]
    raise ConfigError(f"a message holds a {type(value).__name__}", hint="only text, numbers, lists and mappings")
