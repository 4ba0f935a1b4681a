"""What all wire models share: names follow the specification, unknown keys are ignored, required means required."""

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
    """One page of a listing."""

    next_page_token: str | None = None
