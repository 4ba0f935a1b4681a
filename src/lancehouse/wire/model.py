"""Base classes of the wire models: frozen, unknown keys ignored, names as in the specifications."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """JSON with snake_case names (Unity Catalog)."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class KebabModel(BaseModel):
    """JSON with kebab-case names (Iceberg REST, Polaris)."""

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
