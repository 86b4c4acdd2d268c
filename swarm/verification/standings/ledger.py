"""Who has earned what: one client's own account of verified work, in token-layers.

A row that a stage of n layers was found to have answered for, in a window whose coverage holds, is n token-layers.
Nothing is earned before its session is settled, so what was rolled back until then, rejected drafts among it, earns
nothing. It is a record, not money: a client and a server that work together can write themselves any sum.
"""

from __future__ import annotations

from collections.abc import Container

import msgspec

from swarm.core.errors import ConfigError
from swarm.verification.signed.coverage import CoveredWindow
from swarm.verification.signed.receipts import Opening


class Account(msgspec.Struct, array_like=True):
    """Token-layers of one peer: ``earned``, and ``withheld`` while a strike counts."""

    earned: int = 0
    withheld: int = 0
    struck: bool = False


class _Window(msgspec.Struct, array_like=True, frozen=True):
    last: int
    shares: list[tuple[str, int]]


class _State(msgspec.Struct, array_like=True):
    version: int = 1
    accounts: dict[str, Account] = {}
    pending: dict[str, dict[int, _Window]] = {}
    settled: dict[str, float] = {}


class Ledger:
    """Accounts by peer id, and the windows of sessions that are not settled yet."""

    def __init__(self) -> None:
        self._state = _State()

    def account(self, peer: str) -> Account:
        """A copy of what ``peer`` has; zeros for a stranger."""
        found = self._state.accounts.get(peer, Account())
        return Account(found.earned, found.withheld, found.struck)

    def record(self, covered: CoveredWindow) -> None:
        """Note a window of a session that is still open.

        One that was noted before was signed again after a rollback: it replaces itself and voids those above it.
        ``ConfigError`` if the session was settled already, so nothing is earned twice.
        """
        receipts = [signed.receipt for signed in covered.receipts]
        key = _session_of(receipts[0].opening)
        if key in self._state.settled:
            raise ConfigError("the session of this window is settled")
        windows = self._state.pending.setdefault(key, {})
        if covered.window in windows:
            for window in [window for window in windows if window >= covered.window]:
                del windows[window]
        shares = [(receipt.signer, receipt.rows * len(receipt.opening.span)) for receipt in receipts]
        windows[covered.window] = _Window(receipts[0].last, shares)

    def truncate(self, opening: Opening, keep: int) -> None:
        """The session of ``opening`` was rolled back to ``keep`` rows: windows that reach beyond are void."""
        windows = self._state.pending.get(_session_of(opening), {})
        for window in [window for window, noted in windows.items() if noted.last > keep]:
            del windows[window]

    def settle(self, opening: Opening, *, expires_s: float, on_probation: Container[str] = ()) -> dict[str, int]:
        """The session of ``opening`` is over: pay its windows; returns what each peer earned by it.

        A struck peer's share is withheld, one on probation gets nothing. ``expires_s`` is when the last of its receipts
        expires: until then the ledger knows that it was settled.
        """
        key = _session_of(opening)
        paid: dict[str, int] = {}
        for noted in self._state.pending.pop(key, {}).values():
            for peer, share in noted.shares:
                account = self._state.accounts.setdefault(peer, Account())
                if account.struck:
                    account.withheld += share
                elif peer not in on_probation:
                    account.earned += share
                    paid[peer] = paid.get(peer, 0) + share
        self._state.settled[key] = expires_s
        return paid

    def strike(self, peer: str) -> None:
        """Something is held against ``peer``: all it has earned and will earn is withheld, until ``pardon``."""
        account = self._state.accounts.setdefault(peer, Account())
        account.struck = True
        account.withheld += account.earned
        account.earned = 0

    def pardon(self, peer: str) -> None:
        """What was held against ``peer`` is over: what was withheld is its own again."""
        account = self._state.accounts.get(peer)
        if account is not None and account.struck:
            account.struck = False
            account.earned += account.withheld
            account.withheld = 0

    def forget_expired(self, now_s: float) -> None:
        """Drop what is only kept against receipts that have expired; nothing is paid for those any more."""
        settled = self._state.settled
        for key in [key for key, expires_s in settled.items() if expires_s <= now_s]:
            del settled[key]

    def to_bytes(self) -> bytes:
        """The whole state, for a file of one's own."""
        return msgspec.msgpack.encode(self._state)

    @classmethod
    def from_bytes(cls, data: bytes) -> Ledger:
        """Read ``to_bytes``; ``ConfigError`` if the file is damaged, or from a version that this one does not know."""
        ledger = cls()
        try:
            ledger._state = msgspec.msgpack.decode(data, type=_State)
        except msgspec.DecodeError as error:
            raise ConfigError(f"the ledger is damaged: {error}") from error
        if ledger._state.version != 1:
            raise ConfigError(f"a ledger of version {ledger._state.version}", hint="update the package")
        return ledger


def _session_of(opening: Opening) -> str:
    return f"{opening.client}/{opening.session.hex()}"
