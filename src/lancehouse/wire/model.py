"""Base classes of the wire models."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class KebabModel(BaseModel):
    """JSON of Iceberg REST: names in kebab-case, unknown keys ignored."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=lambda name: name.replace("_", "-"),
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )


class Paged(BaseModel):
    """One page of a listing, with the token of the next one."""

    next_page_token: str | None = None
