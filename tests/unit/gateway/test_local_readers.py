"""Which requests a gateway has readers of."""

from __future__ import annotations

from inferflux.gateway.stream.readers import LocalReaders
from inferflux.v1 import scheduler_pb2


def read(request_id: str, attempt_id: str = "", tenant: str = "acme") -> scheduler_pb2.ReadRequest:
    return scheduler_pb2.ReadRequest(tenant=tenant, request_id=request_id, attempt_id=attempt_id)


def test_the_last_reader_of_several_is_told_from_the_others() -> None:
    readers = LocalReaders()
    readers.join(read("r1", "a1"))
    readers.join(read("r1"))
    assert not readers.leave(read("r1", "a1"))
    assert readers.leave(read("r1"))
    assert len(readers) == 0


def test_readers_of_two_tenants_are_not_mixed_up() -> None:
    readers = LocalReaders()
    readers.join(read("r1", "a1"))
    readers.join(read("r1", "a2", tenant="bolt"))
    assert readers.leave(read("r1", "a1"))
    assert len(readers) == 1


def test_reports_name_the_attempt_that_is_known_and_come_in_batches() -> None:
    readers = LocalReaders()
    readers.join(read("r0", "a0"))
    readers.join(read("r0"))
    for i in range(1, 5):
        readers.join(read(f"r{i}"))
    batches = list(readers.batches(2))
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert batches[0][0] == read("r0", "a0")


def test_readers_of_two_attempts_are_reported_each_until_they_leave() -> None:
    readers = LocalReaders()
    accepted, unknown = read("r1", "a1"), read("r1", "a2")
    readers.join(accepted)
    readers.join(unknown)
    assert list(readers.batches(10)) == [[accepted, unknown]]
    assert not readers.leave(unknown)
    assert list(readers.batches(10)) == [[accepted]]


def test_an_attempt_that_becomes_known_later_is_reported_from_then_on() -> None:
    readers = LocalReaders()
    resumed = read("r1")
    readers.join(resumed)
    assert list(readers.batches(10)) == [[read("r1")]]
    resumed.attempt_id = "a1"
    assert list(readers.batches(10)) == [[read("r1", "a1")]]
    assert readers.leave(resumed)
