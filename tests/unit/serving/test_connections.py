"""Which connection has to go, and when: with a clock in the test's hand."""

from __future__ import annotations

from dataclasses import replace

from dra_driver.serving import Limits
from dra_driver.serving.connections import NO_PLACE, Connection, Connections, Stage

LIMITS = Limits(
    connections=4, silent=3, hello=1, handshake=2, header=3, body=4, idle=10, answer=5, body_bytes=100
)


class Hand:
    """Time in the test's hand, and connections that note their end."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.now = 0.0
        self.connections = Connections(limits, lambda: self.now)
        self.ended: list[Connection] = []

    def come(self, peer: str = "10.0.0.1") -> Connection:
        connection = Connection(peer, None)
        connection.close = lambda: self.ended.append(connection)
        self.connections.add(connection)
        self.now += 1 / 64  # exact, as its sums are
        return connection

    def open(self, stage: Stage, peer: str = "10.0.0.1") -> Connection:
        connection = self.come(peer)
        assert self.connections.admit(connection, Stage.HANDSHAKE)
        self.connections.enter(connection, stage)
        return connection


def test_of_too_many_silent_ones_the_oldest_goes() -> None:
    hand = Hand()
    came = [hand.come() for _ in range(5)]
    assert hand.ended == came[:2]
    assert hand.connections.count(Stage.SILENT) == 3


def test_it_is_the_oldest_of_the_peer_that_has_most() -> None:
    hand = Hand()
    first = hand.come("10.0.0.9")
    many = [hand.come() for _ in range(9)]
    assert first not in hand.ended
    assert hand.ended == many[:7]


def test_a_new_connection_takes_the_place_of_the_one_that_waits_for_longest() -> None:
    hand = Hand()
    waiting = [hand.open(s) for s in (Stage.HEADER, Stage.IDLE, Stage.HANDSHAKE, Stage.BODY)]
    hand.now += LIMITS.tenure
    for i, expected in enumerate(waiting, 1):
        hand.open(Stage.HEADER)
        assert hand.ended == waiting[:i]
        assert hand.ended[-1] is expected
    assert hand.connections.closed == {NO_PLACE: 4}


def test_peers_have_their_turns_and_who_came_last_comes_first() -> None:
    hand = Hand()
    a1, b, a2 = hand.come("a"), hand.come("b"), hand.come("a")
    for connection in (a1, b, a2):
        hand.connections.enter(connection, Stage.READY)
    assert hand.connections.next({"a", "b"}) is None
    for expected in (a2, b, a1):
        assert hand.connections.next() is expected
        assert hand.connections.admit(expected, Stage.HANDSHAKE)
    assert hand.connections.next() is None


def test_a_crowd_takes_no_place_of_those_who_are_few() -> None:
    hand = Hand()
    idle = hand.open(Stage.IDLE, "10.0.0.9")
    crowd = [hand.open(Stage.HANDSHAKE) for _ in range(3)]
    late = hand.come()
    assert not hand.connections.admit(late, Stage.HANDSHAKE)
    hand.now += LIMITS.tenure
    assert hand.connections.admit(late, Stage.HANDSHAKE)
    assert hand.ended == crowd[:1]
    assert hand.connections.admit(hand.come("10.0.0.9"), Stage.HANDSHAKE)
    assert hand.ended == crowd[:2]
    assert idle in hand.connections


def test_a_crowd_of_many_addresses_keeps_nobody_out() -> None:
    hand = Hand()
    crowd = [hand.open(Stage.HANDSHAKE, f"fd00::{i}") for i in range(3)]
    hand.open(Stage.SERVED, "10.0.0.9")
    hand.now += LIMITS.tenure
    assert hand.connections.admit(hand.come("10.0.0.9"), Stage.HANDSHAKE)
    assert hand.ended == crowd[:1]


def test_what_is_worked_on_never_goes() -> None:
    hand = Hand()
    served = [hand.open(Stage.SERVED) for _ in range(4)]
    hand.now += LIMITS.tenure
    late = hand.come()
    assert not hand.connections.admit(late, Stage.HANDSHAKE)
    assert hand.ended == []
    hand.connections.enter(served[2], Stage.IDLE)
    hand.now += LIMITS.tenure
    assert hand.connections.admit(late, Stage.HANDSHAKE)
    assert hand.ended == [served[2]]


def test_a_handshake_has_its_time_before_it_gives_way() -> None:
    hand = Hand()
    young = [hand.open(Stage.HANDSHAKE) for _ in range(4)]
    late = hand.come()
    assert not hand.connections.admit(late, Stage.HANDSHAKE)
    hand.now = young[0].since + LIMITS.tenure
    assert hand.connections.admit(late, Stage.HANDSHAKE)
    assert hand.ended == young[:1]


def test_every_stage_but_work_has_its_time() -> None:
    hand = Hand()
    limits = {
        Stage.SILENT: LIMITS.hello,
        Stage.HANDSHAKE: LIMITS.handshake,
        Stage.HEADER: LIMITS.header,
        Stage.BODY: LIMITS.body,
        Stage.IDLE: LIMITS.idle,
    }
    for stage, seconds in limits.items():
        connection = hand.come() if stage is Stage.SILENT else hand.open(stage)
        came = connection.since
        hand.now = came + seconds - 0.125
        hand.connections.sweep()
        assert connection not in hand.ended, stage
        hand.now = came + seconds
        hand.connections.sweep()
        assert connection in hand.ended, stage
    served = hand.open(Stage.SERVED)
    hand.now += 10_000
    hand.connections.sweep()
    assert served not in hand.ended


def test_who_does_not_take_the_answer_is_not_waited_for() -> None:
    hand = Hand()
    slow, well = hand.open(Stage.SERVED), hand.open(Stage.SERVED)
    hand.connections.stall(slow)
    hand.connections.stall(well)
    hand.connections.flow(well)
    hand.now += LIMITS.answer
    hand.connections.sweep()
    assert hand.ended == [slow]


def test_bodies_together_have_a_limit_and_the_oldest_goes() -> None:
    hand = Hand()
    old, new = hand.open(Stage.BODY), hand.open(Stage.BODY)
    hand.connections.hold(old, 60)
    hand.connections.hold(new, 40)
    assert hand.ended == []
    hand.connections.hold(new, 1)
    assert hand.ended == [old]
    hand.connections.release(new)
    last = hand.open(Stage.BODY)
    hand.connections.hold(last, 100)
    assert hand.ended == [old]


def test_of_too_many_bytes_those_of_the_greediest_peer_go() -> None:
    hand = Hand()
    honest = hand.open(Stage.BODY, "10.0.0.2")
    greedy = [hand.open(Stage.BODY) for _ in range(2)]
    hand.connections.hold(honest, 30)
    for connection in greedy:
        hand.connections.hold(connection, 40)
    assert hand.ended == greedy[:1]


def test_one_peer_has_its_share_of_the_open_connections() -> None:
    hand = Hand(replace(LIMITS, per_peer=2))
    first, served = hand.open(Stage.IDLE), hand.open(Stage.SERVED)
    hand.now += LIMITS.tenure
    third = hand.open(Stage.SERVED)  # in the place of its own that waits
    assert hand.ended == [first]
    waiting = hand.come()
    hand.connections.enter(waiting, Stage.READY)
    assert not hand.connections.admit(waiting, Stage.HANDSHAKE)  # both are worked on
    other = hand.open(Stage.HEADER, "10.0.0.2")
    assert hand.ended == [first]
    hand.connections.remove(served)
    assert hand.connections.admit(waiting, Stage.HANDSHAKE)
    assert all(c in hand.connections for c in (third, waiting, other))


def test_the_same_connection_may_end_twice() -> None:
    hand = Hand()
    connection = hand.open(Stage.HEADER)
    hand.connections.end(connection, "test")
    hand.connections.remove(connection)
    assert hand.connections.count() == 0
    assert connection not in hand.connections


def test_limits_leave_file_descriptors_to_the_rest() -> None:
    assert Limits().within_descriptors(1 << 20) == Limits()
    small = Limits().within_descriptors(1024)
    assert small.connections + small.silent <= 1024 // 4
    assert small.connections >= 64
    tiny = Limits().within_descriptors(100)
    assert tiny.connections >= 4
    assert tiny.silent >= 4
