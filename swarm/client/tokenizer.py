"""Text to tokens and back with the ``tokenizers`` library alone: no torch, no transformers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from swarm.client.templates import ChatTemplate
from swarm.core.errors import ConfigError, MisuseError, ModelError
from swarm.models.files import ModelFiles
from swarm.models.folder import read_json

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MAX_ID = 2**32


class Tokenizer:
    """A model's ``tokenizer.json`` with the special tokens and the chat template of its ``tokenizer_config.json``.

    Gives the ids and texts that transformers gives for the same files; like it, it adds BOS and EOS as
    ``tokenizer.json`` says and passes over the config's ``add_bos_token`` and ``add_eos_token``.
    """

    def __init__(self, backend: Backend, template: ChatTemplate | None) -> None:
        self._backend = backend
        self._template = template
        added: dict[int, AddedToken] = backend.get_added_tokens_decoder()
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)

    @classmethod
    def of(cls, files: ModelFiles) -> Tokenizer:
        """The tokenizer of an opened model; raises as ``from_files`` does."""
        path = files.tokenizer_config_path
        config = read_json(path) if path is not None else None
        if config is not None and not isinstance(config, dict):
            raise ModelError(f"{path} is not a JSON object", hint="download the model again")
        return cls.from_files(files.tokenizer_path, config or {}, files.chat_template)

    @classmethod
    def from_files(
        cls,
        tokenizer_json: Path,
        config: Mapping[str, Any],
        chat_template: str | None,
        *,
        now: Callable[[], datetime] = datetime.now,
    ) -> Tokenizer:
        """Read ``tokenizer_json``; ``config`` is the parsed ``tokenizer_config.json``, or empty.

        ``chat_template`` is the Jinja text, None for none. ``now`` is what templates that print the date see. Raises
        ``ModelError`` if a file is missing, damaged or its template does not parse.
        """
        try:
            backend = Backend.from_file(str(tokenizer_json))
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"{tokenizer_json} cannot be read: {error}", hint="download the model again") from error
        backend.no_padding()
        backend.no_truncation()
        special = {name: text for name in _NAMED if (text := _text_of(config.get(name))) is not None}
        backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special.values()])
        template = None if chat_template is None else ChatTemplate(chat_template, special, now)
        return cls(backend, template)

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    @property
    def vocabulary(self) -> int:
        """Tokens known, added ones included; a model may have more rows than that."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``; ``ConfigError`` if it is not text (a lone surrogate is not)."""
        try:
            return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)
        except (TypeError, UnicodeError) as error:
            raise ConfigError(f"cannot encode this as text: {error}", hint="give a valid Unicode string") from error

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ``ids``; bytes that form no character become U+FFFD, ids the tokenizer does not know vanish.

        ``MisuseError`` for an id that is negative or over 32 bits.
        """
        for token_id in ids:
            if not 0 <= token_id < _MAX_ID:
                raise MisuseError(f"{token_id} is no token id")
        return str(self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def chat(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a conversation, as transformers' ``apply_chat_template`` gives them.

        Raises ``ConfigError`` if the model has no template, the messages are malformed, or the template refuses them.
        """
        if self._template is None:
            raise ConfigError("the model has no chat template", hint="give a prompt, not messages")
        text = self._template.render(messages, add_generation_prompt=add_generation_prompt)
        return self.encode(text, add_special_tokens=False)

    def stream(self, skip_special_tokens: bool = True) -> TextStream:
        """A decoder for tokens that come one by one."""
        return TextStream(self, skip_special_tokens)

    def is_special(self, token_id: int) -> bool:
        """True if ``skip_special_tokens`` leaves this token out."""
        return token_id in self._special_ids

    def is_byte(self, token_id: int) -> bool:
        """True if the token is one raw byte (``<0x0A>``) that only its neighbours make a character."""
        token = self._backend.id_to_token(token_id) if 0 <= token_id < _MAX_ID else None
        return token is not None and _BYTE_TOKEN.fullmatch(token) is not None


class TextStream:
    """Text of an answer as its tokens come; the pieces joined equal ``decode`` of all tokens.

    A piece never ends in half a character. Each push decodes only the tokens since the last complete piece.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._window: list[int] = []
        self._read = 0
        """Tokens of the window whose text is out; they stay as context, for a decoder may strip a leading space."""
        self._shown = ""
        """Text of ``_window[:_read]`` as this window decodes it."""
        self._in_bytes = False
        """The last token that shows at all is one raw byte of a run."""

    def push(self, token_id: int) -> str:
        """The text that is complete with this token; empty while a character is only half there."""
        self._window.append(token_id)
        text = self._decode()
        if not (self._skip and self._tokenizer.is_special(token_id)):
            self._in_bytes = self._tokenizer.is_byte(token_id)
        # A run of raw bytes is decoded as a whole: a later bad byte would change what the run gave before.
        if text.endswith(_REPLACEMENT) or self._in_bytes or not text.startswith(self._shown):
            return ""
        piece = text[len(self._shown) :]
        if piece:
            self._window = self._window[self._read :]
            self._read = len(self._window)
            self._shown = self._decode()
        return piece

    def finish(self) -> str:
        """What is left at the end of the answer, U+FFFD for bytes that never became a character."""
        text = self._decode()
        piece = text[len(self._shown) :] if text.startswith(self._shown) else ""
        self._read, self._shown = len(self._window), text
        return piece

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window, self._skip)


def _text_of(token: object) -> str | None:
    """A special token in either of the config's forms, text or a serialized ``AddedToken``."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) and token else None
