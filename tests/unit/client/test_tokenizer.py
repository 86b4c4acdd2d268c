"""The thin tokenizer against transformers' own, on the demo model and on small tokenizers built here."""

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from swarm.client.tokenizer import Tokenizer
from swarm.core.errors import ConfigError, MisuseError, ModelError
from swarm.models import ModelFiles

CORPUS = ["the swarm answers, the swarm grows", "naïve café — 你好 🙂 the end", "  two  spaces\n\nand lines\t"]
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "你好 🙂\n\n  done "}],
    [
        {"role": "user", "content": "One <|im_end|> two"},
        {"role": "assistant", "content": "Three", "tool_calls": None},
        {"role": "user", "content": ""},
    ],
]


def byte_level() -> Backend:
    """A GPT-2-like tokenizer: BPE over bytes, trained here, with two special tokens."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"])
    )
    return backend


def byte_fallback() -> Backend:
    """A Llama-2-like tokenizer: word pieces marked with ▁, 256 raw bytes for all else, leading space stripped."""
    vocabulary = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "▁a", "b", "é", "�"]
    backend = Backend(
        models.BPE({token: index for index, token in enumerate(vocabulary)}, [], unk_token="<unk>", byte_fallback=True)
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    backend.add_special_tokens([AddedToken(token, special=True) for token in ("<unk>", "<s>", "</s>")])
    return backend


BACKENDS = {"byte_level": byte_level(), "byte_fallback": byte_fallback()}


def ours(tmp_path: Path, backend: Backend, config: dict[str, Any] | None = None, **options: Any) -> Tokenizer:
    path = tmp_path / "tokenizer.json"
    backend.save(str(path))
    return Tokenizer.from_files(path, config or {}, options.pop("chat_template", None), **options)


@pytest.fixture(scope="module", params=sorted(BACKENDS))
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return ours(tmp_path_factory.mktemp(request.param), BACKENDS[request.param])


@pytest.fixture(scope="module")
def demo(demo_files: ModelFiles) -> Tokenizer:
    return Tokenizer.of(demo_files)


@pytest.fixture(scope="module")
def reference(demo_files: ModelFiles) -> Any:
    return AutoTokenizer.from_pretrained(demo_files.tokenizer_path.parent)


def check_stream(tokenizer: Tokenizer, ids: list[int], skip: bool) -> None:
    stream = tokenizer.stream(skip_special_tokens=skip)
    pieces = [stream.push(token_id) for token_id in ids]
    assert not any(piece.endswith("�") for piece in pieces)
    assert "".join([*pieces, stream.finish()]) == tokenizer.decode(ids, skip_special_tokens=skip)
    assert stream.finish() == ""


@given(data=st.data(), skip=st.booleans())
def test_pieces_joined_are_the_whole_text(small: Tokenizer, data: st.DataObject, skip: bool) -> None:
    check_stream(small, data.draw(st.lists(st.integers(0, small.vocabulary - 1), max_size=40)), skip)


@given(ids=st.lists(st.sampled_from([3 + byte for byte in "é🙂a".encode()] + [259, 260, 262, 264, 1]), max_size=20))
def test_pieces_of_raw_bytes_joined_are_the_whole_text(byte_fallback_tokenizer: Tokenizer, ids: list[int]) -> None:
    check_stream(byte_fallback_tokenizer, ids, skip=True)


@pytest.fixture(scope="module")
def byte_fallback_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return ours(tmp_path_factory.mktemp("bytes"), BACKENDS["byte_fallback"])


@given(text=st.text(max_size=60))
def test_pieces_of_any_text(small: Tokenizer, text: str) -> None:
    check_stream(small, small.encode(text), skip=True)


@given(data=st.data())
def test_pieces_on_the_demo_model(demo: Tokenizer, data: st.DataObject) -> None:
    text = data.draw(st.text(max_size=40))
    noise = data.draw(st.lists(st.integers(0, demo.vocabulary - 1), max_size=20))
    check_stream(demo, demo.encode(text) + noise, skip=True)


def test_text_comes_as_soon_as_it_is_whole(demo: Tokenizer) -> None:
    stream = demo.stream()
    ids = demo.encode("Hi 🙂!")
    pieces = [stream.push(token_id) for token_id in ids]
    assert "".join(pieces) == "Hi 🙂!"
    assert pieces[0] == "Hi"
    assert pieces[-1] == "!"
    assert any("🙂" in piece for piece in pieces)


def test_a_half_character_at_the_end_shows_as_the_whole_decode_does(demo: Tokenizer) -> None:
    ids = demo.encode("ok 𓂀")[:-1]
    stream = demo.stream()
    shown = "".join(stream.push(token_id) for token_id in ids)
    assert "�" not in shown
    assert shown + stream.finish() == demo.decode(ids)
    assert "�" in demo.decode(ids)


@given(text=st.text(max_size=80), special=st.booleans())
def test_encode_and_decode_equal_transformers(demo: Tokenizer, reference: Any, text: str, special: bool) -> None:
    ids = demo.encode(text, add_special_tokens=special)
    assert ids == reference.encode(text, add_special_tokens=special)
    for skip in (True, False):
        assert demo.decode(ids, skip_special_tokens=skip) == reference.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("messages", CHATS)
@pytest.mark.parametrize("prompt", [True, False])
def test_chat_equals_transformers_on_the_demo_model(
    demo: Tokenizer, reference: Any, messages: list[dict[str, Any]], prompt: bool
) -> None:
    expected = reference.apply_chat_template(messages, add_generation_prompt=prompt)["input_ids"]
    assert demo.chat(messages, add_generation_prompt=prompt) == list(expected)


TEMPLATES = {
    "loops": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}\n"
    "  {%- if loop.index > 2 %}{% break %}{% endif %}[{{ m.role }}] {{ m.content | trim }}\n{% endfor %}",
    "namespace": "{% set ns = namespace(n=0, last='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% set ns.last = m.role %}{% endfor %}{{ ns.n }} {{ ns.last }}{{ dict(a=1) }}",
    "tojson": "{{ messages | tojson }}{{ messages | tojson(indent=2, sort_keys=true) }}{{ '<é>' | tojson }}",
    "generation": "{% for m in messages %}\n    {% generation %}\n{% set x = m.role %}{{ x }}: {{ m.content }}\n"
    "    {% endgeneration %}\n{% endfor %}\n{{ x is defined }}",
    "tokens": "{{ bos_token }}{% if tools is none and not documents %}{{ messages[0].content }}{% endif %}"
    "{{ eos_token }}{% if add_generation_prompt %}>{% endif %}"
    "{{ pad_token is defined }}{{ messages[0].missing is defined }}",
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("messages", CHATS)
def test_template_helpers_equal_transformers(tmp_path: Path, name: str, messages: list[dict[str, Any]]) -> None:
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>", "__type": "AddedToken"}, "unk_token": None}
    tokenizer = ours(tmp_path, byte_level(), config, chat_template=TEMPLATES[name])
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=byte_level(), bos_token="<s>", eos_token="</s>", chat_template=TEMPLATES[name]
    )
    expected = theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert tokenizer.chat(messages) == list(expected)


def test_strftime_now_reads_the_given_clock(tmp_path: Path) -> None:
    template = "{{ strftime_now('%d %b %Y') }}"
    tokenizer = ours(tmp_path, byte_level(), chat_template=template, now=lambda: datetime(2024, 2, 29))
    assert tokenizer.decode(tokenizer.chat(CHATS[0])) == "29 Feb 2024"


@pytest.mark.parametrize("flags", [{}, {"add_bos_token": True}, {"add_bos_token": False, "add_eos_token": True}])
def test_bos_and_eos_are_those_of_the_file_as_in_transformers(tmp_path: Path, flags: dict[str, bool]) -> None:
    backend = byte_level()
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    config = {"bos_token": "<s>", "eos_token": "</s>", **flags}
    tokenizer = ours(tmp_path, backend, config)
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **config})
    )
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for special in (True, False):
        ids = tokenizer.encode("the swarm", add_special_tokens=special)
        assert ids == theirs.encode("the swarm", add_special_tokens=special)
    assert tokenizer.encode("a")[0] == 0


def test_named_tokens_are_special_even_if_the_file_does_not_say_so(tmp_path: Path) -> None:
    tokenizer = ours(tmp_path, byte_level(), {"eos_token": "<end>"})
    ids = tokenizer.encode("a<end>")
    assert tokenizer.decode(ids) == "a"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<end>"


@pytest.mark.parametrize(
    "messages",
    [
        [],
        "Hi",
        {"role": "user", "content": "Hi"},
        ["Hi"],
        [{"content": "Hi"}],
        [{"role": 1}],
        [{"role": "u", "x": b""}],
    ],
)
def test_malformed_messages_are_refused(demo: Tokenizer, messages: Any) -> None:
    with pytest.raises(ConfigError, match="message"):
        demo.chat(messages)


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ 'a' + messages[0].nothing }}",
        "{{ 1 + messages[0].content }}",
        "{{ 1 / 0 }}",
        "{{ ''.__class__.__mro__ }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__['sys'] }}",
        "{% for i in range(10000000) %}{% endfor %}",
    ],
)
def test_a_template_that_refuses_or_reaches_out_is_a_clear_error(tmp_path: Path, template: str) -> None:
    tokenizer = ours(tmp_path, byte_level(), chat_template=template)
    with pytest.raises(ConfigError, match="chat template refuses these messages"):
        tokenizer.chat(CHATS[0])


def test_no_template_is_said(small: Tokenizer) -> None:
    assert not small.has_chat_template
    with pytest.raises(ConfigError, match="no chat template"):
        small.chat(CHATS[0])


def test_damaged_files_are_said(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        Tokenizer.from_files(tmp_path / "absent.json", {}, None)
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be read"):
        Tokenizer.from_files(tmp_path / "bad.json", {}, None)
    with pytest.raises(ModelError, match="does not parse"):
        ours(tmp_path, byte_level(), chat_template="{% for %}")


def test_what_is_no_text_or_no_id_is_refused(small: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="cannot encode"):
        small.encode("\ud800")
    with pytest.raises(MisuseError, match="no token id"):
        small.decode([-1])
    with pytest.raises(MisuseError, match="no token id"):
        small.stream().push(2**32)
    assert small.decode([2**31]) == ""


def test_the_tokenizer_imports_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, swarm.client.tokenizer\n"
        "print([name for name in ('torch', 'transformers', 'hivemind') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
