"""What a server may be told; every timeout and bound has its default and unit here."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.core.metrics import METRICS_IDLE_S


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Bounds and timeouts of one server. The defaults suit a home machine."""

    max_sessions: int = 64
    """Sessions at once, over all clients."""
    max_sessions_per_client: int = 32
    """Sessions at once from one peer id."""
    max_sessions_per_address: int = 48
    """Sessions at once from one IP address (a /64 in IPv6): peer ids cost nothing. This machine's own and relayed
    streams are not counted so."""
    beyond_knee: bool = False
    """Take sessions although those here would keep less than 80 % of the pace they have at the knee."""
    max_kv_share_per_client: float = 0.5
    """Of the KV budget, for one peer id's sessions beyond the first; only while other clients are here or were turned
    away in the last minute."""
    opens_per_s_per_client: float = 16.0
    """OPENs of one peer id in the long run."""
    open_burst_per_client: int = 64
    """The same at once. From one address twice as many of both."""
    max_unopened_per_client: int = 64
    """Control streams of one peer id that have not sent OPEN yet."""
    max_queued_steps: int = 1024
    """With so many steps waiting for the engine no session is taken."""
    max_backlog_s: float = 10.0
    """Nor with so much work waiting, at the measured prefill rate."""
    queue_deadline_s: float = 60.0
    """A step that has waited so long for its turn ends its session."""
    batch_tokens: int = 512
    """Rows of one packed forward; decode steps are taken first."""
    hello_wait_s: float = 5.0
    """How long a hello may wait for the OPEN, or the RELINK, it belongs to."""
    max_waiting_hellos: int = 256
    max_waiting_hellos_per_peer: int = 64
    """So that one stranger's empty hellos cannot keep out everybody else's."""
    open_timeout_s: float = 10.0
    """From a control stream's opening to its OPEN, and from ACCEPT to the first step at the head server."""
    idle_timeout_s: float = 300.0
    dial_timeout_s: float = 10.0
    max_relinks: int = 256
    """Heals of one session; each may make this server dial."""
    relink_gap_s: float = 0.05
    """Between two heals of one session, at least."""
    replay_mb: float | None = None
    """What is kept of rows over all sessions, for heals and audits, in 10^6 bytes; None: as much as all KV can have
    rows. 0: none."""
    receipts: bool = True
    """Sign receipts for the rows that are computed."""
    receipt_lifetime_s: float = 86_400.0
    """How long a receipt counts; clients refuse one that expires in less than ten minutes."""
    audit_hold_s: float = 600.0
    """How long the rows of a closed session are kept for audits, as far as running sessions leave room."""
    stats: bool = True
    """Tell whoever asks how this server is, and where the time of its chains goes."""
    announce_every_s: float = 20.0
    announce_lifetime_s: float = 60.0
    drain_timeout_s: float = 30.0
    metrics_busy_s: float = 1.0
    """Between two metrics records under load while figures change by more than a tenth."""
    metrics_steady_s: float = 2.0
    """The same while they do not."""
    metrics_idle_s: float = METRICS_IDLE_S
    metrics_gap_s: float = 0.1
    """The least time between two records, however many sessions open and close. All four stretch in large swarms."""
    idle_check_s: float = 10.0
    """How often an idle server that was faster once computes a step to see whether it is again."""
    ping_every_s: float = 30.0
    """How often the round trip to each server that could follow this one is measured."""
    uplink_mbps: float | None = None
    """What others are told at most of this server's uplink, whose streams are under such a limit; None: no limit."""
    region: str = ""
    """Where the server stands, in its owner's words; pipelines stay inside a region."""
    public_name: str = ""
