"""Notes of measured recall, one for each vector index, in the table's config: whoever opens the table has read them.

Whoever writes a table can write anything there, so a note that is not of this form counts as absent.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Annotated, Any, Self

import lance
from lance_namespace.errors import TableIndexNotFoundError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from lancehouse.lake.dataset import TableRef, translate_refusals

PREFIX = "lancehouse.recall."
"""Keys of a table's config that hold notes; the name of the index follows."""
MOST_POINTS = 40
"""Efforts that a note has. Every manifest holds all notes, so they are small."""
MOST_NOTES = 16
MOST_BYTES = 8_000

_Number = Annotated[int, Field(ge=1, lt=2**31)]
_Count = Annotated[int, Field(ge=0, lt=2**52)]
_ROUNDED = AfterValidator(lambda value: round(value, 4))
_Milliseconds = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False), _ROUNDED]


class _Note(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)


class RecallPoint(_Note):
    """What one effort of a search finds, and how long it takes; both numbers of the default effort are None."""

    nprobes: _Number | None
    refine_factor: _Number | None
    recall: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), _ROUNDED]
    median_ms: _Milliseconds
    p95_ms: _Milliseconds


class RecallNote(_Note):
    """The last measurement of one index."""

    version: _Count
    """Version of the table that was measured."""
    measured_ms: _Count
    """When, in milliseconds since 1970."""
    k: _Number
    queries: _Number
    index: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """Digest of the files of the index, as `digest_index` returns it."""
    points: Annotated[tuple[RecallPoint, ...], Field(strict=False, min_length=1, max_length=MOST_POINTS)]

    @classmethod
    def parse(cls, text: str | None) -> Self | None:
        """Return a note from a table's config; None if there is none, or if it cannot be one."""
        if text is None or len(text) > MOST_BYTES:
            return None
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return None


def digest_index(index: Any) -> str:
    """Return a digest of an index, as `describe_indices` returns it, that changes with any of its files."""
    files = "\n".join(sorted(str(segment.uuid) for segment in index.segments))
    return blake2b(files.encode(), digest_size=16).hexdigest()


def find_note(dataset: lance.LanceDataset, index: str) -> RecallNote | None:
    """Return the note of an index; nothing is read from storage."""
    return RecallNote.parse(dataset.config().get(PREFIX + index))


def keep_note(table: TableRef, index: str, note: RecallNote) -> int:
    """Replace the note of an index, in a version that changes nothing else; return it.

    Notes of indices that are gone are removed, and so are others if there are too many.

    Raises:
        TableIndexNotFoundError: the index is gone.
        PermissionDeniedError: the caller may not write.
    """
    with table.dataset() as dataset, translate_refusals(table.namespace, table.id):
        names = {description.name for description in dataset.describe_indices()}
        if index not in names:
            raise TableIndexNotFoundError(f"{table} has no index {index} any more")
        others = sorted(key for key in dataset.config() if key.startswith(PREFIX) and key != PREFIX + index)
        valid_keys = [key for key in others if key.removeprefix(PREFIX) in names]
        old_keys = {*others} - {*valid_keys[: MOST_NOTES - 1]}
        dataset.update_config({PREFIX + index: note.model_dump_json(), **dict.fromkeys(old_keys)})
        return int(dataset.version)


def changes_notes(update: lance.LanceOperation.UpdateMap | None) -> bool:
    """Return whether a change of a table's config is of notes, and of nothing else."""
    return update is not None and all(key.startswith(PREFIX) for key in update.updates)
