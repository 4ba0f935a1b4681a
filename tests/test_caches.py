from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from lancehouse.caches import BoundedCache


def cached_names(recent: BoundedCache[str, int], names: str) -> str:
    return "".join(name for name in names if name in recent)


def test_what_was_learnt_is_known() -> None:
    recent: BoundedCache[str, int] = BoundedCache(2)
    assert recent.put("a", 1) == 1
    assert recent.get("a") == 1
    assert "a" in recent
    assert recent.get("b") is None
    assert "b" not in recent


def test_none_is_something_to_know() -> None:
    recent: BoundedCache[str, None] = BoundedCache(2)
    recent.put("a", None)
    assert "a" in recent


@pytest.mark.parametrize(
    ("learnt", "left"),
    [
        ("ab", "ab"),
        ("abc", "abc"),
        ("abcd", "bcd"),
        ("abcad", "cad"),  # learnt again is learnt lately
        ("abcaaa", "bca"),  # and it is no second thing
        ("abcdef", "def"),
    ],
)
def test_the_oldest_is_forgotten(learnt: str, left: str) -> None:
    recent: BoundedCache[str, int] = BoundedCache(3)
    for number, name in enumerate(learnt):
        recent.put(name, number)
    assert cached_names(recent, "abcdef") == "".join(sorted(left))
    assert [recent.get(name) for name in left] == [learnt.rindex(name) for name in left]


def test_forgetting() -> None:
    recent: BoundedCache[str, int] = BoundedCache(2)
    recent.put("a", 1)
    recent.forget("a")
    recent.forget("a")
    recent.forget("never")
    assert "a" not in recent
    recent.put("b", 2)
    recent.put("c", 3)
    assert cached_names(recent, "abc") == "bc"


def test_many_threads() -> None:
    recent: BoundedCache[str, int] = BoundedCache(50)

    def work(thread: int) -> None:
        for number in range(2_000):
            recent.put(f"{thread}-{number % 100}", number)
            recent.get(f"{thread}-{number % 7}")
            recent.forget(f"{thread}-{number % 13}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    left = [name for name in (f"{thread}-{number}" for thread in range(8) for number in range(100)) if name in recent]
    assert 0 < len(left) <= 50


def test_values_may_have_sizes() -> None:
    cache: BoundedCache[str, bytes] = BoundedCache(10, len)
    cache.put("a", b"1234")
    cache.put("b", b"1234")
    cache.put("b", b"123456")  # replaces the other, so both still fit
    assert "a" in cache
    cache.put("c", b"1")
    assert ("a" in cache, "b" in cache, "c" in cache) == (False, True, True)
    cache.forget("b")
    cache.put("d", b"123456789")
    assert "c" in cache
    cache.put("e", b"more than all of it")
    assert ("d" in cache, "e" in cache) == (False, True)
