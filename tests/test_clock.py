"""The budget clock: what counts, what is given back, what is only told apart."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest

from proctor.clock import BudgetClock, ManualClock, SystemClock


@pytest.fixture
def time() -> ManualClock:
    return ManualClock(1000.0)


def test_nothing_counts_before_the_start(time: ManualClock) -> None:
    budget = BudgetClock(10.0, time)
    time.advance(500.0)
    assert (budget.elapsed(), budget.remaining(), budget.running, budget.expired()) == (0.0, 10.0, False, False)


def test_time_runs_from_start_to_stop(time: ManualClock) -> None:
    budget = BudgetClock(10.0, time)
    budget.start()
    time.advance(4.0)
    assert (budget.elapsed(), budget.remaining(), budget.running) == (4.0, 6.0, True)
    budget.stop()
    time.advance(100.0)
    budget.stop()
    assert (budget.elapsed(), budget.remaining(), budget.running) == (4.0, 6.0, False)


def test_budget_is_used_up_exactly_at_the_deadline(time: ManualClock) -> None:
    budget = BudgetClock(10.0, time)
    budget.start()
    time.advance(9.999)
    assert not budget.expired()
    time.advance(0.001)
    assert budget.expired()
    time.advance(5.0)
    assert budget.remaining() == 0.0
    assert budget.elapsed() == pytest.approx(15.0)


def test_credit_moves_the_deadline_and_bookings_do_not(time: ManualClock) -> None:
    budget = BudgetClock(10.0, time)
    budget.start()
    time.advance(6.0)
    budget.credit(2.0)
    budget.book("scoring", 3.0)
    budget.book("scoring", 0.5)
    assert (budget.elapsed(), budget.remaining()) == (4.0, 6.0)
    assert (budget.booked("scoring"), budget.booked("frozen")) == (3.5, 0.0)


def test_credit_can_bring_back_a_passed_deadline(time: ManualClock) -> None:
    budget = BudgetClock(10.0, time)
    budget.start()
    time.advance(11.0)
    assert budget.expired()
    budget.credit(2.0)
    assert not budget.expired()


@pytest.mark.parametrize("seconds", [-1.0, -1e9])
def test_nothing_takes_time_away_from_an_agent(time: ManualClock, seconds: float) -> None:
    budget = BudgetClock(10.0, time)
    budget.start()
    time.advance(1.0)
    budget.credit(seconds)
    budget.book("scoring", seconds)
    assert (budget.elapsed(), budget.booked("scoring")) == (1.0, 0.0)


def test_more_credit_than_time_does_not_make_time_negative(time: ManualClock) -> None:
    budget = BudgetClock(10.0, time)
    budget.start()
    time.advance(1.0)
    budget.credit(5.0)
    assert (budget.elapsed(), budget.remaining()) == (0.0, 10.0)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_budget_must_be_positive(seconds: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        BudgetClock(seconds)


def test_second_start_is_an_error_because_it_would_hide_used_time(time: ManualClock) -> None:
    budget = BudgetClock(10.0, time)
    budget.start()
    with pytest.raises(RuntimeError, match="twice"):
        budget.start()


def test_many_threads_lose_no_credit(time: ManualClock) -> None:
    budget = BudgetClock(1e6, time)
    budget.start()
    time.advance(1e5)

    def give() -> None:
        for _ in range(2000):
            budget.credit(1.0)
            budget.book("scoring", 1.0)

    threads = [threading.Thread(target=give) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (budget.elapsed(), budget.booked("scoring")) == (1e5 - 16000.0, 16000.0)


def test_system_clock_goes_forward_and_knows_the_time_in_utc() -> None:
    clock = SystemClock()
    first = clock.monotonic()
    assert clock.monotonic() >= first
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=5)


def test_manual_clock_moves_only_when_told(time: ManualClock) -> None:
    assert (time.monotonic(), time.now()) == (1000.0, datetime.fromtimestamp(1000.0, UTC))
    time.advance(1.5)
    assert (time.monotonic(), time.now()) == (1001.5, datetime.fromtimestamp(1001.5, UTC))
