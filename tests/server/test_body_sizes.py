"""What a body takes in memory is estimated from its parts, before they are joined."""

from __future__ import annotations

import gzip

import pytest

from lancehouse.server.http import bodies
from lancehouse.server.http.bodies import MAX_ITEM_BYTES, PER_ITEM, PER_OBJECT, MemoryBudget, RequestBody
from lancehouse.server.http.errors import PayloadTooLargeError

LIMIT = 16 * 2**20


def estimate(*parts: bytes, is_gzipped: bool = False) -> tuple[bytes, int]:
    """The body, and what was reserved for it."""
    with MemoryBudget(2**30).reserve() as memory:
        return RequestBody(list(parts), is_gzipped, LIMIT, memory).decompress(), memory.size


@pytest.mark.parametrize(
    ("parts", "size"),
    [
        ([b"[1, 2, 3]"], 9 + PER_OBJECT + 2 * PER_ITEM),
        ([b"[1, ", b"2, 3]"], 9 + PER_OBJECT + 2 * PER_ITEM),
        ([b'"\xc3\xa4"'], 4 * 4),
        ([b'"\\u00e4"'], 4 * 8),
        ([b'"\\', b'u00e4"'], 4 * 8),
        ([b'"\\"a"'], 5),
    ],
)
def test_it_is_the_same_however_it_is_divided(parts: list[bytes], size: int) -> None:
    assert estimate(*parts) == (b"".join(parts), size)


def test_gzip_is_counted_with_what_it_becomes() -> None:
    body, size = estimate(gzip.compress(b"[1, 2]"), is_gzipped=True)
    assert (body, size) == (b"[1, 2]", 6 + 6 + PER_OBJECT + PER_ITEM)


def test_parts_with_too_many_values_are_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[bytes] = []

    def count(part: bytes) -> tuple[int, int]:
        counted.append(part)
        return len(part), 0

    monkeypatch.setattr(bodies, "count_json", count)
    with pytest.raises(PayloadTooLargeError, match="too many values"):
        estimate(*[b"[" * 2**16] * 200)
    assert len(counted) == MAX_ITEM_BYTES // (PER_OBJECT * 2**16) + 1
