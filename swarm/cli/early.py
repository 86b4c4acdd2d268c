"""Ctrl-C while Python still loads modules: the process ends, and no traceback is shown."""

from __future__ import annotations

import signal


def hush() -> None:
    """Until ``listen``, Ctrl-C ends this process as it ends any program that does not know of it.

    Where it is ignored, as for a job in the background, it stays so.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def listen() -> None:
    """Ctrl-C raises ``KeyboardInterrupt`` again: from now on somebody catches it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
