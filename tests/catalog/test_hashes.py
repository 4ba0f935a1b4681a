from __future__ import annotations

import time
from statistics import median

import pytest

from lancehouse.catalog import principals


def test_a_secret_matches_its_hash_only() -> None:
    secret = principals.new_secret()
    kept = principals.hash_secret(secret)
    assert principals.is_secret_valid(secret, kept)
    assert secret not in kept
    assert principals.hash_secret(secret) != kept
    for other in ("", secret[:-1], secret + "0", secret.upper() + "x", principals.new_secret(), "\ud800", "ä"):
        assert not principals.is_secret_valid(other, kept)


def test_a_hash_tells_how_it_was_made() -> None:
    # RFC 7914, 12: scrypt (P="password", S="NaCl", N=1024, r=8, p=16), first 32 bytes of 64
    digest = "fdbabe1c9d3472007856e7190d01e9fe7c6ad7cbc8237830e77376634b373162"
    assert principals.is_secret_valid("password", f"scrypt$1024$8$16${b'NaCl'.hex()}${digest}")


def test_nothing_matches_where_nothing_is_kept() -> None:
    assert not principals.is_secret_valid("", None)
    assert not principals.is_secret_valid(principals.new_secret(), None)


def test_it_takes_as_long_where_nothing_is_kept() -> None:
    kept = principals.hash_secret(principals.new_secret())
    times: dict[str | None, list[float]] = {kept: [], None: []}
    for _ in range(9):
        for each, taken in times.items():
            start = time.process_time()
            principals.is_secret_valid("wrong", each)
            taken.append(time.process_time() - start)
    assert median(times[None]) == pytest.approx(median(times[kept]), rel=0.5)


@pytest.mark.parametrize("make", [principals.new_secret, principals.new_token])
def test_what_we_make_is_long_plain_and_never_the_same(make: object) -> None:
    assert callable(make)
    made = {make() for _ in range(100)}
    assert len(made) == 100
    assert all(text.removeprefix(principals.TOKEN_PREFIX).isalnum() and len(text) >= 64 for text in made)
