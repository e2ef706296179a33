"""Runs a command in a child process, so an end without a verdict is noticed whatever ended it.

No process can report its own ``os._exit(0)``, a crash of the interpreter or the kernel's out-of-memory killer. The child says through a
pipe that its command came to its own end. If it does not, the parent complains, and the exit code is not 0. The child is forked before
anything heavy is imported, so the parent stays small.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

VERDICTS = frozenset({"audit", "attack", "scan", "inspect"})
"""Commands that run a user's model and whose exit code is a verdict."""
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
PATIENCE = 2
"""So many times Ctrl-C is the command's own affair; then a model that swallows it is ended."""
TOGETHER = 0.5
"""A terminal sends Ctrl-C to both processes and the parent passes it on: within so many seconds it counts once."""
DIES_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of Linux."""


def is_needed(words: list[str]) -> bool:
    """Whether a command line runs one of :data:`VERDICTS`."""
    return hasattr(os, "fork") and any(word in VERDICTS for word in words[:1])


def run_supervised(command: Callable[[], NoReturn], *, complain: Callable[[str], None]) -> NoReturn:
    """``command()`` in a child process; exits as it does, or with 2 if it ended without its own exit."""
    parent, (ended, says) = os.getpid(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ended)
        _as_child(parent)
        try:
            command()
        finally:
            os.write(says, b".")
    os.close(says)
    sys.exit(_followed(child, ended, complain))


def _as_child(parent: int) -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # it was killed meanwhile
        os._exit(2)
    last = -TOGETHER

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= TOGETHER:
            last = now
            raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as in a background job of a shell
        signal.signal(signal.SIGINT, interrupt)


def _followed(child: int, ended: int, complain: Callable[[str], None]) -> int:
    """The exit code of the child, to which signals are passed on. A signal that ended it ends this process too."""
    interrupts, forced = 0, False

    def pass_on(number: int, frame: FrameType | None) -> None:
        nonlocal interrupts, forced
        interrupts += number == signal.SIGINT
        forced = interrupts > PATIENCE
        os.kill(child, signal.SIGKILL if forced else number)

    handled = [number for number in PASSED_ON if signal.getsignal(number) != signal.SIG_IGN]  # nohup ignores SIGHUP
    for number in handled:
        signal.signal(number, pass_on)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for number in handled:
        signal.signal(number, signal.SIG_DFL)
    if forced:
        complain("interrupted; the model's code did not let go and was ended, finished work is kept")
        return 130
    said = _has_said(ended)
    if said and code == -signal.SIGINT:  # handled, but it passed through eval() of a text, so Python ended itself
        return 130
    if code < 0:
        complain(f"the command was ended by {signal.Signals(-code).name} before there was a verdict")
        os.kill(os.getpid(), -code)
    if not said:
        complain(f"the model's code ended the process (exit code {code}) before there was a verdict; look for os._exit")
        return 2
    return code


def _has_said(ended: int) -> bool:
    os.set_blocking(ended, False)  # a process that the model's code started may hold the other end
    try:
        return bool(os.read(ended, 1))
    except BlockingIOError:
        return False
