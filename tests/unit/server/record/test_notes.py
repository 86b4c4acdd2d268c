"""Leaves of many steps together are those of each row alone, whatever the steps were."""

from __future__ import annotations

import numpy as np
from desks import MODEL
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.core.spans import Span
from swarm.server.record.notes import Note, Part, leaves_of
from swarm.server.record.replay_log import Encoding
from swarm.verification.signed.leaves import Answers, Leaf, digest_rows, id_hashes, row_hashes, step_leaves
from swarm.verification.verdicts.calibration import calibrate
from swarm.verification.verdicts.sketch import Sketcher, is_sketch_of
from swarm.wire.tensors import cut_tensor, encode_tensor

HIDDEN = 96
RAW = Encoding("raw", "float32", HIDDEN)
INT8 = Encoding("int8", "float32", HIDDEN)
SKETCHER = Sketcher.of(
    calibrate(MODEL, np.random.default_rng(1).standard_normal((3, 80, HIDDEN)), np.ones(80, bool), text=""), Span(0, 2)
)


def encoded(rows: np.ndarray, form: Encoding) -> bytes:
    return bytes(encode_tensor(rows.astype(np.float32).tobytes(), form.codec, form.dtype, HIDDEN))


@st.composite
def notes(draw: st.DrawFn) -> Note:
    """A step of a middle stage, of a tail that samples, or of one that sends rows; ids may come, alone or along."""
    rows = draw(st.integers(1, 9))
    kind = draw(st.sampled_from(["middle", "sampler", "rows"]))
    answered = rows if kind == "middle" else draw(st.integers(0, rows))
    random = np.random.default_rng(draw(st.integers(0, 1000)))
    arriving, leaving = draw(st.sampled_from([RAW, INT8])), draw(st.sampled_from([RAW, INT8]))
    came, outputs = random.standard_normal((rows, HIDDEN)), random.standard_normal((rows, HIDDEN))
    raw_outputs = encoded(outputs, RAW)
    left: bytes | None = encoded(outputs[rows - answered :], leaving) if answered else b""
    if kind == "middle" and leaving == RAW:
        left = raw_outputs
    alone = draw(st.booleans())
    return Note(
        first=0,
        rows=rows,
        ids=np.arange(rows) + 5 if alone or draw(st.booleans()) else None,
        came=b"" if alone else encoded(came, arriving),
        arriving=arriving,
        inputs=encoded(came, RAW),
        outputs=raw_outputs,
        left=None if kind == "sampler" else left,
        leaving=leaving,
        answered=answered,
        tokens=list(range(70, 70 + answered)) if kind == "sampler" else [],
        leads_on=kind == "middle",
        replayed=draw(st.booleans()),
    )


def one_row(tensor: bytes, form: Encoding, row: int) -> list[bytes]:
    parts = cut_tensor(tensor, form.codec, form.dtype, HIDDEN, row, row + 1)
    return digest_rows(1, *(part for part in parts if len(part)))


def leaf_of(note: Note, row: int, position: int) -> Leaf:
    """The leaf of one row, by the words of docs/verification.md."""
    ids = None if note.ids is None else [int(note.ids[row])]
    received = row_hashes(one_row(bytes(note.came), note.arriving, row), ids) if note.came else id_hashes(ids or [])
    outputs = one_row(bytes(note.outputs), RAW, row)
    answer = row - (note.rows - note.answered)
    if note.left is None:
        answers = Answers(outputs, [note.tokens[answer]]) if answer >= 0 else None
        return step_leaves(position, received, outputs, None if answers else id_hashes([None]), answers=answers)[0]
    sent = id_hashes([None])
    if answer >= 0:
        sent = row_hashes(one_row(bytes(note.left), note.leaving, answer), ids if note.leads_on else None)
    return step_leaves(position, received, outputs, sent)[0]


@settings(max_examples=60)
@given(st.lists(notes(), min_size=1, max_size=8), st.data())
def test_rows_of_many_steps_have_the_leaves_of_each_alone(steps: list[Note], data: st.DataObject) -> None:
    first, parts, wanted = 32, [], []
    for step in steps:
        begin = data.draw(st.integers(0, step.rows - 1))
        end = data.draw(st.integers(begin + 1, step.rows))
        fields = {name: getattr(step, name) for name in Note.__slots__} | {"first": first - begin}
        note = Note(**{**fields, "left": fields["outputs"] if step.left is step.outputs else step.left})
        parts.append(Part(note, first, first + end - begin))
        wanted += [(note.replayed, leaf_of(note, row, first + row - begin)) for row in range(begin, end)]
        first += end - begin
    found = [(replayed, leaf) for replayed, leaves in leaves_of(parts, RAW, None) for leaf in leaves]
    assert found == wanted
    sketched = [leaf for _, leaves in leaves_of(parts, RAW, SKETCHER) for leaf in leaves]
    updates = np.concatenate([update_of(part) for part in parts])
    sketches = np.frombuffer(b"".join(leaf.sketch for leaf in sketched), np.int8).reshape(-1, 16)
    assert is_sketch_of(sketches, SKETCHER.sketch(updates, first=32))


def update_of(part: Part) -> np.ndarray:
    inputs, outputs = (
        np.frombuffer(rows, np.float32).reshape(-1, HIDDEN) for rows in (part.note.inputs, part.note.outputs)
    )
    return (outputs - inputs)[slice(*part.own)]
