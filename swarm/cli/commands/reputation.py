"""``swarm reputation``: what this machine makes of servers, and why."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from swarm.cli.output.tables import LINE_CHARS, folded, legend, short_names, table
from swarm.core.errors import ConfigError, MisuseError
from swarm.core.ids import PeerId
from swarm.runtime.clock import SystemClock
from swarm.runtime.logs import printable
from swarm.runtime.reputation import IN_MEMORY, Known, ReputationStore
from swarm.verification.standings.apart import Broken
from swarm.verification.standings.ledger import Account
from swarm.verification.standings.strikes import TRUSTED, UNPROVEN_S, Policy, audit_rate, on_probation

SHORTEST_ENDING = 4
"""Characters of a peer id by which a server may be named where something changes."""
EXAMPLES = """\
examples:
  python -m swarm reputation
  python -m swarm reputation --peer 9XkT2bQw --events                     # the end of a peer id will do
  python -m swarm reputation --proof 3fa9c1 --out cheat.proof             then: python -m swarm verify-proof cheat.proof
  python -m swarm reputation --forgive 9XkT2bQw                           hold nothing against it that was not proven
  python -m swarm reputation --json

"windows" are those audited that counted, "e" the error of the last one (honest servers stay below 0.045), "evidence"
what the sequential test has gathered (it ejects at 10^6), "audits" the share of its windows that is audited now,
"credit" token-layers earned and verified; who never audits credits nobody, which changes nothing in routing. It is
this machine's own view: others have theirs, and believe only proofs.

An ejection for good was proven, to anybody or by weights of this machine. One "until" a time rests on this machine's
books, or on what other servers say, where nobody else could check it: it ends by itself, and --forgive ends it now.
Whoever is back and fails once more is out again, for longer.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "List the servers this machine has audited, struck or ejected, and why."
    parser.epilog = EXAMPLES
    parser.add_argument("--store", type=Path, metavar="FILE", help="where it is kept (default: in the data folder)")
    parser.add_argument("--peer", metavar="ID", help="only this server: its peer id or the end of it")
    parser.add_argument("--events", action="store_true", help="also what happened, in order of time")
    parser.add_argument("--forgive", metavar="ID", help="hold nothing unproven against this server any more: strikes, "
                        "ejection for a time, accusations, broken links; programs that run see it at once. Its peer id "
                        "or at least the last 4 characters")  # fmt: skip
    parser.add_argument("--proven", action="store_true", help="with --forgive: what was proven too, as if never seen; "
                        "another proof would eject it again")  # fmt: skip
    parser.add_argument("--proof", metavar="DIGEST", help="write the kept proof whose digest begins so to --out")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write the proof")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(options: argparse.Namespace) -> int:
    if (options.proof is None) != (options.out is None):
        raise ConfigError("--proof and --out go together", hint="name a proof's digest and a file")
    if options.proven and options.forgive is None:
        raise ConfigError("--proven goes with --forgive", hint="name the server to forgive")
    path = options.store or ReputationStore.default_path()
    if options.store is not None and not path.exists():
        raise ConfigError(f"no store of reputations at {str(path)!r}", hint="see --store")
    with ReputationStore(path if path.exists() else IN_MEMORY, SystemClock()) as store:
        if options.proof is not None:
            _write_proof(store, options.proof.lower(), options.out)
            return 0
        if options.forgive is not None:
            return _forgive(store, options.forgive, proven=options.proven)
        known = _chosen(store.known(), options.peer)
        ending = options.peer or ""
        links = [link for link in store.broken_links() if any(peer.endswith(ending) for peer in link.pair)]
        if options.json:
            print(json.dumps(_json(path, store, known, links, events=options.events)))
        elif known or links:
            print(_text(store, known, links, events=options.events))
        else:
            print(f"Nothing is known of any server yet ({path}).")
            print("Audits, verifiers and other peers' proofs fill it.")
    return 0


def _forgive(store: ReputationStore, ending: str, *, proven: bool) -> int:
    if len(ending) < SHORTEST_ENDING:
        hint = "list all with: python -m swarm reputation"
        raise MisuseError(f"--forgive takes at least the last {SHORTEST_ENDING} characters of a peer id", hint=hint)
    peers = {one.peer for one in store.known()} | store.accused()
    peers |= {peer for link in store.broken_links() for peer in link.pair}
    found = sorted(peer for peer in peers if peer.endswith(ending))
    if len(found) != 1:
        who = f"{len(found)} servers have ids that end in" if found else "nothing is known of a server whose id ends in"
        raise ConfigError(f"{who} {ending!r}", hint="list all with: python -m swarm reputation")
    left = store.forgive(found[0], proven=proven)
    if not left.strikes and not left.ejected:
        print(f"Forgiven: nothing is held against {found[0]} any more.")
        return 0
    stays = f"ejected: {left.ejected}" if left.ejected else "struck"
    print(f"Forgiven what was not proven of {found[0]}. It stays {stays}; --proven forgives that too.")
    return 1 if left.ejected else 0


def _chosen(known: Sequence[Known], ending: str | None) -> list[Known]:
    """Those to show: the ejected first, then by strikes, then by how much is known of them."""
    found = [one for one in known if ending is None or one.peer.endswith(ending)]
    if ending is not None and not found:
        raise ConfigError(f"nothing is known of a server whose id ends in {ending!r}", hint="list all without --peer")
    return sorted(
        found,
        key=lambda one: (
            not one.standing.ejected, -len(one.standing.strikes), -one.standing.audited, one.peer
        ),
    )  # fmt: skip


def _write_proof(store: ReputationStore, beginning: str, out: Path) -> None:
    found = [kept for kept in store.proofs() if kept.digest.hex().startswith(beginning)]
    if len(found) != 1:
        wrong = f"{len(found)} kept proofs have" if found else "no kept proof has"
        raise ConfigError(f"{wrong} a digest that begins with {beginning!r}", hint="see --json for the whole list")
    data = store.proof(found[0].digest) or b""
    try:
        out.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"cannot write {str(out)!r}: {error.strerror}", hint="choose another --out") from error
    print(f"{len(data)} bytes of a proof of {found[0].kind} against {found[0].subject} written to {out}")


def _log10_evidence(one: Known) -> float | None:
    """The most that any one reference has gathered; None without audits."""
    found = [entry.suspicion.log_evidence for entry in one.standing.evidence]
    return max(found) / math.log(10) if found else None


def _fate(one: Known, accused: frozenset[PeerId]) -> str:
    standing = one.standing
    if standing.ejected:
        until = f" until {_time(standing.until_s)} UTC, not proven" if standing.passing else ""
        return f"EJECTED{until}: {standing.ejected}"
    if one.peer in accused:
        return "accused by somebody, not yet checked"
    if standing.strikes:
        unproven = [entry.since_s for entry in standing.unproven]
        until = f", not proven, until {_time(max(unproven) + UNPROVEN_S)} UTC" if unproven else ""
        return "struck" + ("" if len(unproven) < len(standing.strikes) else until)
    if standing.terms:
        return "back on probation: was ejected, not proven, " + ("once" if standing.terms == 1 else "several times")
    if not standing.audited:
        return "never audited"
    return "on probation" if on_probation(standing, Policy()) else "good"


def _rows_text(store: ReputationStore, known: Sequence[Known], names: Mapping[str, str]) -> list[str]:
    """A line for each server; its standing stands beneath where the line would be too long."""
    ledger, accused, policy = store.ledger(), store.accused(), Policy()
    rows, fates = [], ["standing"]
    for one in known:
        evidence = _log10_evidence(one)
        account = ledger.account(one.peer)
        rows.append(
            (
                names[one.peer],
                str(one.standing.audited),
                "-" if one.error is None else f"{one.error:.4f}",
                "-" if evidence is None else f"10^{evidence:.1f}",
                str(len(one.standing.strikes)),
                f"{100 * audit_rate(one.standing, policy):.0f} %",
                str(account.earned) + (f" ({account.withheld} withheld)" if account.withheld else ""),
            )
        )
        fates.append(printable(_fate(one, accused)))
    if not rows:
        return []
    figures = table(("server", "windows", "e", "evidence", "strikes", "audits", "credit"), rows).split("\n")
    width = max(map(len, figures))
    lines = []
    for line, fate in zip(figures, fates, strict=True):
        fits = width + 2 + len(fate) <= LINE_CHARS
        lines += [f"{line.ljust(width)}  {fate}"] if fits else [line, _folded(fate, " " * 6)]
    return lines


def _text(store: ReputationStore, known: Sequence[Known], links: Sequence[Broken], *, events: bool) -> str:
    proofs, told = store.proofs(), store.events() if events else ()
    ids = [*(one.peer for one in known), *(peer for link in links for peer in link.pair)]
    names = short_names([*ids, *(kept.subject for kept in proofs), *(event.peer for event in told)])
    lines = _rows_text(store, known, names)
    apart = [link for link in links if link.pair in store.apart().pairs]
    if apart:
        lines += ["", "kept apart, since their common link broke; where there is no other chain they are tried before:"]
        lines += [
            f"  {names[link.one]} and {names[link.other]}, until {_time(link.apart_until_s())} UTC" for link in apart
        ]
    shown = {one.peer for one in known}
    proofs = [kept for kept in proofs if kept.subject in shown]
    if proofs:
        proof_rows = [(kept.digest.hex()[:16], kept.kind, names[kept.subject], f"{kept.size} bytes") for kept in proofs]
        lines += ["", table(("proof", "of", "against", "size"), proof_rows)]
    if events:
        seen = [event for event in told if event.peer in shown]
        lines += ["", *(_folded(event.what, f"  {_time(event.time_s)}  {names[event.peer]}  ") for event in seen)]
    if explained := legend(names):
        lines += ["", *explained]
    return "\n".join(lines).lstrip("\n")


def _folded(text: str, begin: str) -> str:
    return folded(text.split(" "), " ", begin=begin, indent=" " * 6)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _json(
    path: Path, store: ReputationStore, known: Sequence[Known], links: Sequence[Broken], *, events: bool
) -> dict[str, Any]:
    ledger, accused, policy = store.ledger(), store.accused(), Policy()
    shown = {one.peer for one in known}
    found: dict[str, Any] = {
        "store": str(path),
        "peers": [_peer_json(one, ledger.account(one.peer), one.peer in accused, policy) for one in known],
        "apart": [list(link.pair) for link in links if link.pair in store.apart().pairs],
        "broken_links": [_link_json(link) for link in links],
        "proofs": [
            {"digest": kept.digest.hex(), "kind": kept.kind, "peer": kept.subject, "bytes": kept.size,
             "time_s": kept.time_s}
            for kept in store.proofs() if kept.subject in shown
        ],
    }  # fmt: skip
    if events:
        found["events"] = [
            {"time_s": event.time_s, "peer": event.peer, "what": event.what}
            for event in store.events()
            if event.peer in shown
        ]
    return found


def _link_json(link: Broken) -> dict[str, Any]:
    """Older versions kept no times of links: those are null."""
    dated = bool(link.since_s)
    return {
        "peers": list(link.pair),
        "times": link.times,
        "since_s": link.since_s if dated else None,
        "last_resort_from_s": link.resort_from_s() if dated else None,
        "apart_until_s": link.apart_until_s() if dated else None,
    }


def _peer_json(one: Known, account: Account, accused: bool, policy: Policy) -> dict[str, Any]:
    standing = one.standing
    return {
        "peer": one.peer,
        "windows_audited": standing.audited,
        "e": one.error,
        "evidence": [
            {"reference": "own weights" if entry.reference == TRUSTED else entry.reference,
             "windows": entry.suspicion.windows, "log10": entry.suspicion.log_evidence / math.log(10)}
            for entry in standing.evidence
        ],
        "strikes": len(standing.strikes),
        "strikes_unproven": len(standing.unproven),
        "ejected": standing.ejected,
        "ejected_until_s": standing.until_s if standing.passing else None,
        "terms": standing.terms,
        "accused": accused,
        "on_probation": on_probation(standing, policy),
        "audit_rate": audit_rate(standing, policy),
        "windows_void": standing.voided,
        "audits_asked": standing.audits.asked,
        "audits_refused": standing.audits.refused,
        "traffic_asked": standing.traffic.asked,
        "traffic_refused": standing.traffic.refused,
        "credit": account.earned,
        "withheld": account.withheld,
        "changed_s": one.changed_s,
    }  # fmt: skip
