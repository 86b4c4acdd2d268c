"""One tree of errors. The branch says whose fault it is; the hint says what to do next.

``MisuseError``    ours: the caller asked for something that cannot be.
``PeerError``      a peer broke the protocol or lied.
``NetworkError``   nobody lied, but the bytes did not arrive.
``CapacityError``  the swarm is fine, but full, or does not hold what was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable

from swarm.core.text import clip

MAX_PEER_MESSAGE_CHARS = 1000


class SwarmError(Exception):
    """Root of every error this package raises on purpose.

    ``hint`` is one imperative sentence for a person, or an empty string.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class MisuseError(SwarmError):
    """The caller's argument, file or environment is wrong."""


class ConfigError(MisuseError):
    """An option or a combination of options is wrong."""


class DamagedFileError(ConfigError):
    """A file of ours does not hold any more what was written to it."""


class ModelError(MisuseError):
    """The model's folder or files are missing, damaged or not a causal language model."""


class UnsupportedFamilyError(ModelError):
    """The model's architecture cannot be served in spans; the message names it and why."""


class PromptTooLongError(MisuseError):
    """Prompt and answer do not fit the model's context or a server's KV budget."""


class IdentityInUseError(MisuseError):
    """Another process holds the identity key file, or another machine announces with it."""


class PeerError(SwarmError):
    """A peer is at fault. The message may quote the peer, so it is cut to one printable line."""

    def __init__(self, message: str, *, peer: str = "", hint: str = "") -> None:
        message, peer = clip(message, MAX_PEER_MESSAGE_CHARS), clip(peer, MAX_PEER_MESSAGE_CHARS)
        super().__init__(f"peer {peer[-8:]}: {message}" if peer else message, hint=hint)
        self.peer = peer


class ProtocolViolation(PeerError):
    """A peer sent what the protocol does not allow: bad bytes, bad order, bad length."""


class BadSignatureError(PeerError):
    """A signature does not verify under the key its peer id contains."""


class BadRecordError(PeerError):
    """A directory record is unsigned, expired, too large, or says something absurd."""


class ReceiptError(PeerError):
    """Receipts do not say what they must. Its kinds name what is wrong, so that each can be judged on its own."""


class ExpiredReceiptError(ReceiptError):
    """A receipt counts no longer."""


class WrongNonceError(ReceiptError):
    """A receipt was signed for another opening: nonce, session or client are not those that were expected."""


class WrongModelError(ReceiptError):
    """A receipt names another model, or another calibration of it."""


class WrongNumericsError(ReceiptError):
    """A receipt declares another dtype or quantization than the server did when it was chosen."""


class UnexpectedSignerError(ReceiptError):
    """A receipt for a stage that its signer was not asked to run."""


class SpanOutsideModelError(ReceiptError):
    """A receipt claims layers that the model does not have."""


class WrongSpanError(ReceiptError):
    """A receipt claims other layers than its stage was opened for, though all receipts together tile the model."""


class DuplicateStageError(ReceiptError):
    """Two receipts of one stage for one window."""


class CoverageGapError(ReceiptError):
    """Layers that no receipt of the window covers."""


class CoverageOverlapError(ReceiptError):
    """Layers that two receipts of one window claim."""


class UnequalRowsError(ReceiptError):
    """The receipts of one window do not speak of the same rows."""


class BrokenChainError(ReceiptError):
    """A receipt does not follow the one its server signed before: a counter left out, or another predecessor."""


class BrokenLinkError(ReceiptError):
    """What one server says it sent is not what the next says it received. ``peers`` are both, in the chain's order.

    Either may lie, or the path between them: this blames neither, so ``peer`` is empty.
    """

    def __init__(self, message: str, *, peers: tuple[str, str], hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.peers = peers


class BadProofError(ReceiptError):
    """A proof, an opened leaf or a list of rows does not show what it claims. The fault is whose it came from."""


class EquivocationError(ReceiptError):
    """A peer signed two different receipts under one counter; ``proof`` is the evidence, as bytes for anybody."""

    def __init__(self, message: str, *, peer: str, proof: bytes, hint: str = "") -> None:
        super().__init__(message, peer=peer, hint=hint)
        self.proof = proof


class NetworkError(SwarmError):
    """The network, or a machine on it, failed; trying again may help."""


class PeerUnreachableError(NetworkError):
    """A peer could not be dialled, or did not answer in time."""


class PeerLostError(NetworkError):
    """A peer went away in the middle of a session."""

    def __init__(self, message: str, *, peer: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.peer = peer


class DownloadError(NetworkError):
    """A model file could not be fetched, or what arrived does not match its hash."""


class CapacityError(SwarmError):
    """The swarm has no room, or nobody holds what was asked for."""


class NoRouteError(CapacityError):
    """No chain of servers covers the model; the message names the layers."""


class BusyError(CapacityError):
    """Full for now; trying again after ``retry_after_s`` may succeed."""

    def __init__(self, message: str, *, retry_after_s: float, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class RefusedError(CapacityError):
    """Can never fit: the request is over a server's fixed limit."""


class BadLogitsError(SwarmError):
    """Logits hold NaN or infinity: overflow, damaged weights or a peer's hidden states; nobody can tell which here."""


class ChainOpenError(SwarmError):
    """Some servers of a chain did not accept; ``failures`` holds each one's error by peer id.

    ``links`` are pairs of peer ids of which one did not reach the other: their servers are among the failures.
    """

    def __init__(self, failures: dict[str, SwarmError], links: Iterable[tuple[str, str]] = ()) -> None:
        worst = next(iter(failures.values()))
        super().__init__(worst.message, hint=worst.hint)
        self.failures = failures
        self.links = frozenset(links)


class GenerationInterruptedError(SwarmError):
    """An answer could not be finished.

    ``token_ids`` and ``text`` are the valid part; ``__cause__`` says what went wrong.
    """

    def __init__(self, message: str, *, token_ids: tuple[int, ...], text: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.token_ids = token_ids
        self.text = text
