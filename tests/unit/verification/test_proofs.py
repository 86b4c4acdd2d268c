"""Fraud proofs: one test for each way to forge one, and that a true one convicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import pytest
from receipted_chain import CLIENT, EXPIRES_S, NOW_S, SERVERS, sign
from synthetic_activations import HIDDEN, LAYERS, MODEL, Floats, stream, toy_calibration

from swarm.core.errors import BadProofError, BadSignatureError, ConfigError, MisuseError, PeerError, ProtocolViolation
from swarm.core.limits import MAX_PROOF_BYTES
from swarm.core.numerics import Numerics
from swarm.verification.challenges.challenge import Table, walk
from swarm.verification.challenges.challenge import body as challenge_body
from swarm.verification.challenges.commitment import commit
from swarm.verification.proofs import ChallengeText, Charge, FraudProof, ProofParts, judge_charge
from swarm.verification.signed.leaves import Leaf, digest_rows, id_hashes, row_hashes, step_leaves
from swarm.verification.signed.receipts import NO_HASH, Opening, SignedReceipt
from swarm.verification.signed.windows import WindowBuilder, counter_base
from swarm.verification.verdicts.verdict import SOFT_ONLY
from swarm.verification.verdicts.whitening import Rows

CALIBRATION = toy_calibration()
TABLE = Table(tuple(range(40)) * 3 + (7, 3, 1, 9, 2), order=2)
SEED = bytes(range(32))
PROMPT, ANSWER = 70, 26
ROWS = PROMPT + ANSWER
TEXT = ChallengeText(TABLE, PROMPT)
STATES = stream(np.random.default_rng(5), ROWS)
FLOAT32 = Numerics("float32")


@dataclass
class Session:
    """One server's stage of a challenge: what it received, what it says it computed, and what it signed."""

    start: int = 1
    end: int = 3
    cheats: Callable[[Floats], Floats] = lambda outputs: STATES[1]
    seed: bytes = SEED
    calibration: bytes = CALIBRATION.digest()
    inputs: Floats = field(default_factory=lambda: STATES[1])
    numerics: str = "float32"
    prompt: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.prompt = self.prompt or walk(self.seed, PROMPT, TABLE)
        self.token_ids = (*self.prompt, *range(200, 200 + ROWS - len(self.prompt)))
        self.opening = Opening(
            signer=SERVERS[0].peer_id,
            client=CLIENT.peer_id,
            session=bytes(16),
            nonce=bytes(16),
            stage=1,
            start=self.start,
            end=self.end,
            model=str(MODEL),
            calibration=self.calibration,
            numerics=self.numerics,
            commitment=commit(self.seed),
        )
        self.outputs = np.asarray(self.cheats(STATES[self.end]), np.float32)
        raw = b"" if self.start == 0 else np.asarray(self.inputs, np.float32).tobytes()
        self.raw = raw
        received = row_hashes(digest_rows(ROWS, raw), self.token_ids) if raw else id_hashes(self.token_ids)
        digests = digest_rows(ROWS, self.outputs.tobytes())
        self.leaves = step_leaves(0, received, digests, row_hashes(digests, self.token_ids))
        builder = WindowBuilder(self.opening, counter_base(NOW_S, 0))
        builder.append(self.leaves)
        self.receipts = [sign(receipt) for receipt in builder.close(ROWS, EXPIRES_S)]

    def parts(self, window: int = 2) -> ProofParts:
        first, last = window * 32, min(window * 32 + 32, ROWS)
        return ProofParts(
            seed=self.seed,
            receipts=self.receipts[: window + 1],
            codec="raw",
            token_ids=self.token_ids,
            inputs=self.raw[: last * 4 * HIDDEN],
            outputs=self.outputs[first:last].tobytes(),
            leaves=self.leaves[first:last],
            calibration=CALIBRATION.digest(),
        )

    def proof(self, window: int = 2, text: ChallengeText = TEXT, **changes: object) -> FraudProof:
        return FraudProof.of(replace(self.parts(window), **changes), text)


def rows_of(charge: Charge) -> Rows:
    """As the client decodes them."""
    last, first = charge.receipt.last, charge.receipt.first
    outputs = np.zeros((last, HIDDEN), np.float32)
    outputs[first:] = np.frombuffer(charge.outputs, np.float32).reshape(-1, HIDDEN)
    inputs = np.frombuffer(charge.inputs, np.float32).reshape(-1, HIDDEN) if charge.inputs else STATES[0][:last]
    return Rows(0, np.asarray(inputs), outputs)


def judged(charge: Charge, **options: object) -> float:
    options = {"numerics": FLOAT32, "calibration": CALIBRATION} | options
    calibration = options.pop("calibration")
    reference = STATES[charge.opening.end][charge.receipt.first : charge.receipt.last]
    verdict = judge_charge(charge, rows_of(charge), reference, calibration, **options)  # type: ignore[arg-type]
    return verdict.found.error


def refused(message: str) -> AbstractContextManager[object]:
    """``of`` makes no proof that ``check`` would not accept."""
    return pytest.raises(ConfigError, match=message)


def forged(proof: FraudProof, **fields: object) -> FraudProof:
    """As somebody with an editor makes it: parsed again from its bytes."""
    return FraudProof.parse(msgspec.structs.replace(proof, **fields).to_bytes())


# -- true ones ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [0, 1, 2])
def test_a_true_proof_convicts_from_its_bytes_alone(window: int) -> None:
    data = Session().proof(window).to_bytes()
    charge = FraudProof.parse(data).check()
    assert (charge.subject, charge.receipt.window) == (SERVERS[0].peer_id, window)
    assert judged(charge) == pytest.approx(1.0)


def test_a_head_server_that_embedded_other_ids_is_convicted_without_inputs() -> None:
    cheat = Session(start=0, end=2, cheats=lambda outputs: STATES[2][::-1])
    charge = FraudProof.parse(cheat.proof().to_bytes()).check()
    assert charge.inputs == b""
    assert judged(charge) > 0.5


def test_whoever_has_no_embeddings_judges_a_first_stage_by_its_outputs() -> None:
    charge = Session(start=0, end=2, cheats=lambda outputs: STATES[2] + 3 * STATES[0]).proof().check()
    blind = Rows(0, np.zeros((ROWS, HIDDEN), np.float32), rows_of(charge).outputs)
    reference = STATES[2][64:]
    with pytest.raises(BadProofError, match="outside"):
        judge_charge(charge, blind, reference, CALIBRATION, numerics=FLOAT32)
    known = judged(charge)
    found = judge_charge(charge, blind, reference, CALIBRATION, numerics=FLOAT32, inputs_known=False).found.error
    assert 0.1 < found < known


def test_a_server_without_a_calibration_is_judged_by_the_verifiers_own() -> None:
    assert judged(Session(calibration=NO_HASH).proof().check()) == pytest.approx(1.0)


def test_the_middle_of_a_prompt_can_be_proven() -> None:
    assert Session().proof(0).check().receipt.window == 0


def test_a_prompt_out_of_a_table_of_prompts_within_a_chat_template() -> None:
    prompts = Table(tuple(range(60)) + tuple(range(100, 162)), prompts=(60, 62))
    body = prompts.prompt(0)[:60]
    session = Session(prompt=(90, *body, 91, 92), seed=SEED)
    assert body == challenge_body(SEED, 0, prompts), "the seed draws the first one"
    text = ChallengeText(prompts, len(session.prompt), (1, 2))
    for window in (0, 2):
        assert judged(session.proof(window, text).check()) == pytest.approx(1.0)
    with refused("not the challenge"):
        session.proof(text=replace(text, around=(1, 1)))
    with refused("not the challenge"):
        session.proof(text=replace(text, table=Table(prompts.ids, prompts=(62, 60))))


def test_the_bytes_are_canonical_and_bounded() -> None:
    data = Session().proof().to_bytes()
    assert FraudProof.parse(data).to_bytes() == data
    fields = msgspec.msgpack.decode(data)
    padded = data.replace(b"\xa7fraud/1", b"\xd9\x07fraud/1")  # a longer form of the same string
    assert msgspec.msgpack.decode(padded) == fields
    with pytest.raises(BadProofError, match="canonical"):
        FraudProof.parse(padded)
    with pytest.raises(BadProofError, match="bytes"):
        FraudProof.parse(bytes(MAX_PROOF_BYTES + 1))


# -- forgeries ------------------------------------------------------------------------------------------------


def test_forgery_a_changed_input_row() -> None:
    parts = Session().parts()
    changed = bytes([parts.inputs[0] ^ 1]) + parts.inputs[1:]
    with refused("not the rows 0:32"):
        Session().proof(inputs=changed)


def test_forgery_a_changed_output_row() -> None:
    parts = Session().parts()
    with refused("outputs are not those of the leaves"):
        Session().proof(outputs=bytes(len(parts.outputs)))


def test_forgery_outputs_with_leaves_to_match() -> None:
    """The leaves then are not those that were signed."""
    session, other = Session(cheats=lambda outputs: outputs), Session(cheats=lambda outputs: outputs * 2)
    with refused("not the leaves that the receipt was signed over"):
        session.proof(outputs=other.parts().outputs, leaves=other.parts().leaves)


def test_forgery_changed_token_ids() -> None:
    ids = Session().token_ids
    with refused("not the rows"):
        Session().proof(token_ids=(*ids[:80], 5, *ids[81:]))


def test_forgery_the_receipts_of_another_session() -> None:
    other = Session(seed=bytes(32))
    with refused("not the rows"):
        Session().proof(receipts=other.receipts)
    with refused("different openings"):
        Session().proof(receipts=[*Session().receipts[:2], other.receipts[2]])


def test_forgery_a_receipt_that_was_not_signed() -> None:
    receipts = Session().receipts
    with refused("signature does not verify"):
        Session().proof(receipts=[*receipts[:2], SignedReceipt(receipts[2].receipt, bytes(64))])
    with refused("signature does not verify"):
        Session().proof(receipts=[SignedReceipt(receipts[0].receipt, receipts[1].signature), *receipts[1:]])


def test_forgery_a_window_without_those_before_it() -> None:
    with refused("every window"):
        Session().proof(receipts=Session().receipts[2:])
    with refused("every window"):
        Session().proof(receipts=[Session().receipts[0], Session().receipts[2]])


def test_forgery_the_wrong_window() -> None:
    """What the server answered for window 1, held against its receipt for window 2."""
    session = Session()
    first = session.parts(1)
    with refused("not the leaves|not those of the leaves"):
        session.proof(outputs=first.outputs, leaves=first.leaves)


def test_forgery_rows_of_two_states_of_a_session() -> None:
    """An honest server was rolled back and signed its first window again: the old one's second is not of one text."""
    session = Session()
    builder = WindowBuilder(session.opening, counter_base(NOW_S, 0))
    builder.append(session.leaves)
    old = [sign(receipt) for receipt in builder.commit(ROWS, EXPIRES_S)]
    builder.truncate(0)
    builder.append(session.leaves)
    new = [sign(receipt) for receipt in builder.commit(ROWS, EXPIRES_S)]
    for mixture in ([new[0], *old[1:]], [old[0], *new[1:]], [*new[:2], old[2]]):
        with refused("one right after the other"):
            session.proof(receipts=mixture)
    session.proof(receipts=old)
    session.proof(receipts=new)


def test_forgery_another_seed() -> None:
    with refused("not the one committed to"):
        Session().proof(seed=bytes(32))


def test_forgery_a_conversation_instead_of_a_challenge() -> None:
    """The client's own secret is no seed of its text; nor is it with another table or a made-up length."""
    session = Session()
    with refused("not the challenge"):
        session.proof(text=replace(TEXT, table=Table(tuple(range(41)))))
    with refused("not the challenge"):
        session.proof(text=replace(TEXT, prompt_tokens=PROMPT + 1))
    with refused("follow from the seed"):
        session.proof(text=replace(TEXT, prompt_tokens=3))
    with refused("follow from the seed"):
        session.proof(text=replace(TEXT, around=(32, 32)))
    with refused("malformed"):
        session.proof(text=replace(TEXT, around=(65, 0)))


def test_forgery_a_table_that_fills_the_memory() -> None:
    proof = Session().proof()
    text = msgspec.structs.replace(proof.text, ids=bytes(4 * 2**17), order=8)
    with pytest.raises(BadProofError, match="too large"):
        forged(proof, text=text).check()


def test_forgery_truncated() -> None:
    data = Session().proof().to_bytes()
    for cut in (0, 1, 100, len(data) // 2, len(data) - 1):
        with pytest.raises(BadProofError, match="malformed"):
            FraudProof.parse(data[:cut])
    parts = Session().parts()
    for name in ("inputs", "outputs", "leaves"):
        with refused("nobody would accept"):
            Session().proof(**{name: getattr(parts, name)[:-1]})
    with refused("95 token ids for 96 rows"):
        Session().proof(token_ids=parts.token_ids[:-1])
    proof = Session().proof()
    for text in (b"", b"abc", bytes(4)):
        with pytest.raises(BadProofError, match=r"no table|cut"):
            forged(proof, text=msgspec.structs.replace(proof.text, ids=text)).check()


@pytest.mark.parametrize(
    "name", ["inputs", "outputs", "token_ids", "leaves", "receipts", "text", "codec", "calibration"]
)
def test_forgery_any_field_of_another_proof(name: str) -> None:
    mine = Session().proof()
    theirs = Session(seed=bytes(32), cheats=lambda outputs: outputs, inputs=STATES[0], calibration=NO_HASH).proof(
        1, calibration=bytes(32)
    )
    field_of_theirs = "int8" if name == "codec" else getattr(theirs, name)
    with pytest.raises(PeerError):
        judged(forged(mine, **{name: field_of_theirs}).check())


def test_forgery_honest_rows_accused() -> None:
    noise = np.random.default_rng(3).normal(0, 0.015, (ROWS, HIDDEN)) * CALIBRATION.scale(Session().opening.span)
    honest = Session(cheats=lambda outputs: outputs + noise).proof()
    with pytest.raises(BadProofError, match="the server is right"):
        judged(honest.check())
    with pytest.raises(BadProofError, match="the server is right"):
        judged(Session(cheats=lambda outputs: outputs + 4 * noise).proof().check())  # soft is no fraud


def test_forgery_inputs_outside_the_calibrated_range() -> None:
    """Crafted rows make honest servers differ: in the window, or before it, where attention still reads them."""
    for place in (80, 40):
        crafted = STATES[1].copy()
        crafted[place] *= 100
        with pytest.raises(BadProofError, match="outside"):
            judged(Session(inputs=crafted).proof().check())


def test_forgery_rows_that_no_text_leads_to() -> None:
    charge = Session().proof().check()
    grown = STATES[3][64:].copy()
    grown[3] += 30_000
    with pytest.raises(BadProofError, match="does not count"):
        judge_charge(charge, rows_of(charge), grown, CALIBRATION, numerics=FLOAT32)


def test_forgery_the_wrong_calibration() -> None:
    """An accuser may not choose one by which an honest server looks wrong."""
    other = toy_calibration(300)
    with pytest.raises(BadProofError, match="another calibration than the one that the server named"):
        judged(Session(calibration=other.digest()).proof().check())
    with pytest.raises(BadProofError, match="another calibration than the one that the server named"):
        judged(Session().proof(calibration=other.digest()).check(), calibration=other)
    unnamed = Session(calibration=NO_HASH)
    for charge in (Session().proof().check(), unnamed.proof().check()):
        with pytest.raises(MisuseError, match="another calibration than the one here"):
            judged(charge, calibration=other)


def test_forgery_another_model_or_layers_beyond_it() -> None:
    session = Session()
    charge = session.proof().check()
    for changes in ({"model": "toy@main#fedcba9876543210"}, {"end": LAYERS + 1}):
        opening = msgspec.structs.replace(session.opening, **changes)
        receipt = msgspec.structs.replace(charge.receipt, opening=opening)
        moved = replace(charge, receipt=receipt)
        with pytest.raises(BadProofError, match="another model"):
            judge_charge(moved, rows_of(charge), STATES[3][64:], CALIBRATION, numerics=FLOAT32)


def test_a_reference_of_another_quantization_judges_nobody() -> None:
    charge = Session(numerics="float32+int8").proof().check()
    with pytest.raises(MisuseError, match="int8"):
        judged(charge)
    assert judged(charge, numerics=Numerics("bfloat16", "int8")) == pytest.approx(1.0)


def test_a_mixture_of_experts_is_only_ever_soft() -> None:
    with pytest.raises(BadProofError, match="the server is right"):
        judged(Session().proof().check(), thresholds=SOFT_ONLY)


def test_receipts_in_numerics_that_nobody_knows() -> None:
    with refused("no known numerics"):
        Session(numerics="float8").proof()


def leaves_with(leaves: Sequence[Leaf], **changes: object) -> list[Leaf]:
    return [replace(leaves[0], **changes), *leaves[1:]]  # type: ignore[arg-type]


def test_forgery_a_leaf_with_another_sketch() -> None:
    leaves = Session().parts().leaves
    with refused("not the leaves"):
        Session().proof(leaves=leaves_with(leaves, sketch=bytes(range(16))))


def test_errors_name_their_kind() -> None:
    proof = Session().proof()
    with pytest.raises(BadSignatureError):
        forged(proof, text=msgspec.structs.replace(proof.text, seed=bytes(32))).check()
    with pytest.raises(ProtocolViolation):
        forged(proof, text=msgspec.structs.replace(proof.text, order=1)).check()
