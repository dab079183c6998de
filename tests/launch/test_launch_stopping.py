"""Asked to stop once: at the next safe point. Twice: at once."""

from __future__ import annotations

import os
import signal

import pytest

from nccltune.errors import Interrupted
from nccltune.launch.stopping import StopFlag


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_noted_and_told_at_the_next_check(number: signal.Signals) -> None:
    flag = StopFlag()
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with flag.installed():
        flag.check()
        os.kill(os.getpid(), number)  # nothing is raised here
        assert flag.requested
        with pytest.raises(Interrupted):
            flag.check()
    assert {n: signal.getsignal(n) for n in before} == before


def test_a_second_ctrl_c_stops_at_once() -> None:
    with StopFlag().installed():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1_000_000):  # the interpreter gets to it between two steps
                pass


def test_handlers_are_given_back_after_an_error() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError), StopFlag().installed():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_that_was_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    try:
        flag = StopFlag()
        with flag.installed():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGHUP)
            assert not flag.requested
            os.kill(os.getpid(), signal.SIGTERM)
            assert flag.requested
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_only_ctrl_c_makes_the_next_ctrl_c_stop_at_once(number: signal.Signals) -> None:
    flag = StopFlag()
    with flag.installed():
        noting = signal.getsignal(signal.SIGINT)
        os.kill(os.getpid(), number)
        assert flag.requested
        assert signal.getsignal(signal.SIGINT) == noting
        os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
