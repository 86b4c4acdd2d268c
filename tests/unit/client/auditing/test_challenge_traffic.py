"""What challenges are made of: a seed, a table in the model's tokens, a chat template around it."""

from __future__ import annotations

from datetime import datetime

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from swarm.client.auditing.traffic import Script, everyday, gaps_s, read_prompts, seed_of
from swarm.client.templates import ChatTemplate
from swarm.client.tokenizer import Tokenizer
from swarm.core.errors import ConfigError
from swarm.verification.challenges.challenge import check_challenge
from swarm.verification.challenges.challenge_text import TEXT
from swarm.verification.challenges.commitment import AUDIT_SECRET_BYTES, commit
from swarm.verification.proofs import MIN_SEEDED_TOKENS

TEMPLATE = "<s>{% for m in messages %}[{{ m.role }}] {{ m.content }}</s>{% endfor %}"
PROMPTS = ("What is a river?", "Name three\nsmall towns.", "Hi")


def by_byte(template: str | None = TEMPLATE) -> Tokenizer:
    """A token for each byte."""
    words = ["<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Backend(models.BPE({word: index for index, word in enumerate(words)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in ("<s>", "</s>")])
    return Tokenizer(backend, None if template is None else ChatTemplate(template, {}, datetime.now))


def script(prompts: tuple[str, ...] = (), template: str | None = TEMPLATE, context: int = 4096) -> Script:
    return everyday(by_byte(template), context, interval_s=60.0, prompts=prompts)


@pytest.mark.parametrize("prompts", [(), PROMPTS])
def test_a_challenge_is_what_its_proof_says_of_it(prompts: tuple[str, ...]) -> None:
    made = script(prompts)
    for number in range(20):
        challenge = made.challenge(seed_of(str(number)))
        text = made.text(challenge)
        assert text.prompt_tokens == len(challenge.prompt)
        check_challenge(commit(challenge.seed), challenge.seed, challenge.prompt, text.table, text.around)
        assert len(challenge.prompt) - sum(text.around) >= MIN_SEEDED_TOKENS


def test_prompts_stand_in_the_chat_template_as_people_s_do() -> None:
    tokenizer, made = by_byte(), script(PROMPTS)
    asked = {tuple(tokenizer.chat([{"role": "user", "content": prompt}])) for prompt in PROMPTS[:2]}
    assert {made.challenge(seed_of(str(number))).prompt for number in range(20)} == asked


def test_a_model_without_a_template_gets_the_text_alone() -> None:
    made = script(PROMPTS, template=None)
    found = {made.challenge(seed_of(str(number))).prompt for number in range(20)}
    assert found == {tuple(by_byte(None).encode(prompt)) for prompt in PROMPTS[:2]}


def test_walks_begin_as_sentences_do_and_stay_in_the_text() -> None:
    made, tokenizer = script(), by_byte()
    firsts = {line.strip()[0] for line in TEXT.replace("? ", ".\n").replace(". ", ".\n").splitlines() if line.strip()}
    for number in range(10):
        challenge = made.challenge(seed_of(str(number)))
        before, after = made.text(challenge).around
        walked = tokenizer.decode(challenge.prompt[before : len(challenge.prompt) - after])
        assert walked[0] in firsts
        assert set(walked) <= {*TEXT}


def test_a_prompt_leaves_the_model_room_to_answer() -> None:
    for number in range(10):
        challenge = script(context=64).challenge(seed_of(str(number)))
        assert len(challenge.prompt) < len(challenge.prompt) + challenge.max_new_tokens <= 64
    with pytest.raises(ConfigError, match="leaves the model no room"):
        script(("x" * 80,), context=64).challenge(seed_of("1"))


def test_prompts_that_prove_nothing_are_left_out() -> None:
    with pytest.raises(ConfigError, match="none of the prompts has 8 tokens"):
        script(("Hi", "Why?"))


def test_gaps_are_as_long_as_asked_on_average() -> None:
    assert sum(gaps_s(60.0)) / len(gaps_s(60.0)) == pytest.approx(60.0)
    assert max(gaps_s(0.0)) == 0


def test_prompts_may_hold_line_ends() -> None:
    assert read_prompts('one\n\n"two\\nlines"\n"not json\n') == ("one", "two\nlines", '"not json')
    with pytest.raises(ConfigError, match="no prompts"):
        read_prompts(" \n\n")


def test_a_seed_is_a_number_or_the_bytes_themselves() -> None:
    assert seed_of("ab" * AUDIT_SECRET_BYTES) == b"\xab" * AUDIT_SECRET_BYTES
    assert seed_of("7") == seed_of("007") != seed_of("8")
    assert len(seed_of("7")) == AUDIT_SECRET_BYTES
    for wrong in ("", "-1", "x", "1.5", "ab", "٣", "z" * 64):
        with pytest.raises(ConfigError, match="is no seed"):
            seed_of(wrong)
