"""Row filters and column masks of grants: what each grant says, and what several of them together let a caller see."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from lance_namespace.errors import InvalidInputError

NULL, HASH, TEXT = "null", "hash", "text:"
"""Masks: no value, a keyed hash of the value, and (as a prefix) a text instead of the value."""
MOST_MASKS = 1_000
"""Most columns that one grant masks."""
LONGEST_TEXT = 200
"""Longest text that a mask puts in place of values, in characters."""
LONGEST_FILTER = 10_000
"""Longest row filter, in characters."""


@dataclass(frozen=True, slots=True)
class Restriction:
    """The row filter and the column masks of one grant."""

    where: str | None = None
    """Condition in Lance's SQL, as the gateway has parsed and rewritten it; None for all rows."""
    filter_columns: tuple[str, ...] = ()
    """Columns that the condition names, sorted."""
    masks: tuple[tuple[str, str], ...] = ()
    """Masked columns, sorted, each with `null`, `hash`, or `text:` and the text."""

    def __post_init__(self) -> None:
        if len(self.where or "") > LONGEST_FILTER:
            raise InvalidInputError(f"where: the row filter has more than {LONGEST_FILTER:,} characters")
        if len(self.masks) > MOST_MASKS:
            raise InvalidInputError(f"masks: {len(self.masks):,} columns are masked, and {MOST_MASKS:,} are the most")
        if self.where is None and not self.masks:
            raise InvalidInputError("a restricted grant has a row filter (where), masks, or both")
        for column, mask in self.masks:
            check_mask(column, mask)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` has written."""
        fields = json.loads(text)
        return cls(fields["where"], tuple(fields["columns"]), tuple(sorted(fields["masks"].items())))

    def to_json(self) -> str:
        """Return it as text for the database."""
        return json.dumps({"where": self.where, "columns": self.filter_columns, "masks": dict(self.masks)})

    def describe(self) -> dict[str, Any]:
        """Return what admins see of it, in requests, responses and the audit."""
        return {"where": self.where, "masks": dict(self.masks)}

    def __str__(self) -> str:
        parts = [f"where {self.where}"] if self.where is not None else []
        parts += [f"{column} masked by {mask}" for column, mask in self.masks]
        return ", ".join(parts)


def check_mask(column: str, mask: str) -> None:
    """Refuse a mask that is none.

    Raises:
        InvalidInputError: the message says what a mask is.
    """
    if not column:
        raise InvalidInputError("masks: the name of a column is empty")
    if mask in (NULL, HASH):
        return
    if not mask.startswith(TEXT):
        raise InvalidInputError(f"masks: column {column[:80]}: a mask is null, hash, or text: and a text")
    if len(mask) > len(TEXT) + LONGEST_TEXT or not mask.isprintable():
        raise InvalidInputError(
            f"masks: column {column[:80]}: the text has at most {LONGEST_TEXT} characters, all of them printable"
        )


@dataclass(frozen=True, slots=True)
class RowPolicy:
    """What a caller without any unrestricted grant sees of a table, by all their grants on it together."""

    where: str | None
    """Condition in Lance's SQL that visible rows meet; None: all are visible."""
    filter_columns: frozenset[str]
    """Columns that the condition names."""
    masks: Mapping[str, str] = field(hash=False)
    """The masks of columns by name."""

    @classmethod
    def combine(cls, restrictions: Iterable[Restriction]) -> Self:
        """Combine the restrictions of several grants.

        Rows are visible by any of them. A column that one of them masks is masked in all rows, since a row does not say
        by which grant it is visible; where two masks of a column differ, it is null.
        """
        restrictions = sorted(restrictions, key=Restriction.to_json)
        conditions = dict.fromkeys(restriction.where for restriction in restrictions)
        where = None if None in conditions else " OR ".join(f"({condition})" for condition in conditions)
        columns = frozenset(column for restriction in restrictions for column in restriction.filter_columns)
        masks: dict[str, str] = {}
        for column, mask in sorted(pair for restriction in restrictions for pair in restriction.masks):
            masks[column] = mask if masks.get(column, mask) == mask else NULL
        return cls(where, columns, masks)

    def digest(self, key: bytes) -> str:
        """Return a short digest, which names the folder of copies made under it; `key` is that of hashes."""
        text = json.dumps([self.where, sorted(self.masks.items())])
        return hashlib.blake2b(text.encode(), key=key[:64], digest_size=16).hexdigest()
