from __future__ import annotations

from contextlib import ExitStack

import pytest
from lance_namespace.errors import ServiceUnavailableError

from lancehouse.server.http import oauth
from lancehouse.server.http.oauth import (
    FORGOTTEN_S,
    FREE,
    LONGEST_S,
    LoginAttempts,
    LoginQueue,
    SlowDownError,
    peer_network,
)


class Clock:
    """A time that stands still until somebody moves it."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def fail(counted: LoginAttempts, clock: Clock, times: int, client: str = "ada", peer: str = "192.0.2.1") -> list[int]:
    """Send wrong secrets, each as soon as it is looked at; how long each had to wait."""
    waits = []
    for _ in range(times):
        wait_s = 0
        try:
            counted.check(client, peer)
        except SlowDownError as refusal:
            wait_s = refusal.retry_after_s
            clock.now += wait_s
            counted.check(client, peer)
        waits.append(wait_s)
        counted.count_failure(client, peer)
    return waits


def test_the_pause_doubles_up_to_a_limit() -> None:
    clock = Clock()
    assert fail(LoginAttempts(clock), clock, 12) == [0] * FREE + [1, 2, 4, 8, 16, 32, 60]
    assert LONGEST_S == 60
    counted = LoginAttempts(clock)
    fail(counted, clock, 2000)
    with pytest.raises(SlowDownError, match="wait 60 s"):
        counted.check("ada", "192.0.2.1")


def test_the_right_secret_and_time_let_failures_be_forgotten() -> None:
    clock = Clock()
    counted = LoginAttempts(clock)
    fail(counted, clock, FREE + 3)
    counted.reset("ada", "192.0.2.1")
    assert fail(counted, clock, FREE) == [0] * FREE
    clock.now += FORGOTTEN_S
    assert fail(counted, clock, FREE) == [0] * FREE


@pytest.mark.parametrize(
    ("client", "peer", "is_same"),
    [
        ("ada", "192.0.2.1", True),
        ("ada", "::ffff:192.0.2.1", True),
        ("bob", "192.0.2.1", False),
        ("ada", "192.0.2.2", False),
        ("ada", "2001:db8::1", False),
        ("", "192.0.2.1", False),
    ],
)
def test_who_is_slowed_down(client: str, peer: str, is_same: bool) -> None:
    clock = Clock()
    counted = LoginAttempts(clock)
    fail(counted, clock, FREE)
    with ExitStack() as stack:
        if is_same:
            stack.enter_context(pytest.raises(SlowDownError))
        counted.check(client, peer)


def test_a_host_with_many_addresses_is_one_peer() -> None:
    assert peer_network("2001:db8:1:2::1") == peer_network("2001:db8:1:2:ffff::9") == "2001:0db8:0001:0002"
    assert peer_network("2001:db8:1:3::1") != peer_network("2001:db8:1:2::1")
    assert peer_network("fe80::1%eth0") == peer_network("fe80::2%eth1")
    assert peer_network("") == ""
    assert peer_network("/run/socket") == "/run/socket"


def test_invented_names_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oauth, "COUNTED", 50)
    counted = LoginAttempts(Clock())
    for number in range(500):
        counted.count_failure("x" * 1000 + str(number), f"192.0.2.{number % 250}")
    assert len(counted._failures) == 50
    assert {len(key) for key in counted._failures} == {64}


def test_one_peer_leaves_room_for_others_to_wait() -> None:
    waiting = LoginQueue()
    with ExitStack() as stack:
        for _ in range(oauth.WAITING_OF_A_PEER):
            stack.enter_context(waiting.enter("192.0.2.1"))
        with pytest.raises(ServiceUnavailableError), waiting.enter("192.0.2.1"):
            pass
        for _ in range(oauth.WAITING - oauth.WAITING_OF_A_PEER):
            stack.enter_context(waiting.enter("192.0.2.2"))
        with pytest.raises(ServiceUnavailableError), waiting.enter("192.0.2.3"):
            pass
    with waiting.enter("192.0.2.1"):
        assert waiting._peers == {"192.0.2.1": 1}
