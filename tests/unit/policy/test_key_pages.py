"""A list of keys in pages is the list, whatever happens between two pages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inferflux.policy.decide.keys import ApiKeyRecord
from inferflux.policy.operator.key_admin import page_of

records = st.lists(
    st.builds(
        ApiKeyRecord,
        digest=st.text("0123456789abcdef", min_size=64, max_size=64),
        tenant=st.just("acme"),
        name=st.just("x"),
        scopes=st.just(("inference",)),
        created_unix_ms=st.integers(0, 3),
    ),
    unique_by=lambda record: record.key_id,
    max_size=12,
).map(lambda found: sorted(found, key=lambda r: (r.created_unix_ms, r.key_id)))


@given(records, st.integers(0, 5), st.data())
def test_every_key_that_stays_is_told_once(found: list[ApiKeyRecord], size: int, data: st.DataObject) -> None:
    told: list[ApiKeyRecord] = []
    left, token = list(found), ""
    while True:
        page, token = page_of(left, token, size)
        assert not size or len(page) <= size
        told += page
        if not token:
            break
        if left and (gone := data.draw(st.none() | st.sampled_from(left))) is not None:
            left.remove(gone)
    assert len({record.key_id for record in told}) == len(told)
    assert set(left) <= set(told)
