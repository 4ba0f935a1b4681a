"""A URL that gets the changes of warehouses: which of them, and how messages to it are signed.

Only quick imports here: the settings of a server are read before Lance is loaded.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass, field

SECRET_PREFIX = "whsec_"  # noqa: S105


@dataclass(frozen=True, slots=True)
class Webhook:
    """A URL that gets events."""

    name: str
    url: str
    secret: str = field(repr=False)
    warehouse: str | None = None
    """Only changes of this warehouse; None for all."""
    types: tuple[str, ...] = ()
    """Only actions that begin so, such as `table` or `table.commit`; empty for all."""

    def selects(self, action: str, warehouse: str) -> bool:
        """Return whether a change is sent."""
        return self.warehouse in (None, warehouse) and (
            not self.types or any(f"{action}.".startswith(f"{word}.") for word in self.types)
        )

    def sign(self, id: str, timestamp: int, body: bytes) -> str:
        """Return the signature of a message as the Standard Webhooks specification has it."""
        is_encoded = self.secret.startswith(SECRET_PREFIX)
        key = base64.b64decode(self.secret.removeprefix(SECRET_PREFIX)) if is_encoded else self.secret.encode()
        content = f"{id}.{timestamp}.".encode() + body
        return "v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
