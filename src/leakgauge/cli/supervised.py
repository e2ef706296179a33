"""Runs a command in a child process, so an end that is not its own is noticed whatever ended it.

No process can report its own ``os._exit(0)``, a crash of the interpreter or the kernel's out-of-memory killer. The child leaves its exit
code in memory that both share when its command comes to its own end. If it does not, the parent complains, and the exit code is not 0.
The child is forked before anything heavy is imported, so the parent stays small.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn


@dataclass(frozen=True)
class Wording:
    """What a sentence calls the user's code in a command, and what is missing when that code ends the process."""

    code: str
    missing: str


VERDICT = Wording("the model's code", "before there was a verdict")
MEASURED = Wording(
    "the script", "before the monitor could finish; what was measured is kept, and leakgauge report FOLDER shows it"
)
SUPERVISED = {"audit": VERDICT, "attack": VERDICT, "scan": VERDICT, "inspect": VERDICT, "monitor": MEASURED}
"""Commands that run a user's code."""
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""A scheduler sends the last two to a training that shall save its state."""
PATIENCE = 2
"""So many times Ctrl-C is the command's own affair; then code that swallows it is ended."""
TOGETHER = 0.5
"""An interrupt of the whole process group reaches both processes and the parent passes it on: within so many seconds it counts once."""
DIES_WITH_PARENT, FROM_THE_KERNEL = 1, 128
"""PR_SET_PDEATHSIG and SI_KERNEL of Linux."""


def wording(words: list[str]) -> Wording | None:
    """How to speak of the command if it has to be supervised."""
    return SUPERVISED.get(words[0]) if words and hasattr(os, "fork") else None


def run_supervised(command: Callable[[], NoReturn], say: Wording, *, complain: Callable[[str], None]) -> NoReturn:
    """``command()`` in a child process; exits as it does, or with 2 if it ended without its own exit."""
    parent, shared = os.getpid(), mmap.mmap(-1, 2)  # not a pipe: a script may close every descriptor that it finds
    # a job of a shell in the background ignores SIGINT, and nohup SIGHUP
    handled = {number for number in PASSED_ON if signal.getsignal(number) != signal.SIG_IGN} | {signal.SIGCHLD}
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # one that is ignored could not be waited for
    signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    child = os.fork()
    if child == 0:
        _as_child(parent, handled)
        me = os.getpid()
        try:
            command()
        except SystemExit as left:
            if os.getpid() == me:  # not a copy that the user's code made
                shared[:] = bytes([True, left.code if isinstance(left.code, int) else 1])
            raise
    sys.exit(_followed(child, shared, handled, say, complain))


def _as_child(parent: int, handled: Iterable[int]) -> None:
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

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if signal.SIGINT in handled:
        signal.signal(signal.SIGINT, interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)


def _followed(
    child: int, shared: mmap.mmap, handled: Iterable[int], say: Wording, complain: Callable[[str], None]
) -> int:
    """The exit code of the child, to which signals are passed on. A signal that ended it ends this process too."""
    interrupts, forced, status = 0, False, None
    while status is None:
        number, has_it = _next_signal(handled)
        if number == signal.SIGCHLD:
            found, how = os.waitpid(child, os.WNOHANG)  # also sent when the child is stopped and goes on
            status = how if found else None
            continue
        interrupts += number == signal.SIGINT
        forced = interrupts > PATIENCE
        if forced or not has_it:
            os.kill(child, signal.SIGKILL if forced else number)
    if forced:
        complain(f"interrupted; {say.code} did not let go and was ended, finished work is kept")
        return 130
    code, said = os.waitstatus_to_exitcode(status), shared[1] if shared[0] else None
    if said:  # stands even where an exit handler of the user's code ends the process otherwise
        return said
    if code < 0:
        when = f" {say.missing}" if said is None else ""
        complain(f"the command was ended by {signal.Signals(-code).name}{when}")
        _die_by(-code)
    if said is None:
        complain(f"{say.code} ended the process (exit code {code}) {say.missing}; look for os._exit")
        return 2
    return code


def _die_by(number: int) -> None:
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)


def _next_signal(handled: Iterable[int]) -> tuple[int, bool]:
    """Waits for a signal. Also returns whether a terminal sent it, to the child as well; only Linux can tell."""
    if sys.platform == "linux":
        info = signal.sigwaitinfo(handled)
        return info.si_signo, info.si_code == FROM_THE_KERNEL
    return signal.sigwait(handled), False
