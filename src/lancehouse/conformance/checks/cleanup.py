"""Checks after all others: no secrets in errors, and nothing left behind."""

from __future__ import annotations

from lancehouse.conformance.subject import Subject


def check_no_secret_in_errors(subject: Subject) -> None:
    """No error of the whole run holds a secret."""
    errors = subject.log.errors
    leaking = [error for error in errors if any(secret in error for secret in subject.target.secrets)]
    assert not leaking, f"{len(leaking)} of {len(errors)} errors hold a secret, such as: {leaking[0]}"
    subject.note(f"{len(errors)} errors read")


def check_nothing_left(subject: Subject) -> None:
    """The suite leaves nothing behind."""
    left = subject.close()
    listed = [name for name in subject.list_namespaces(subject.parent) if subject.token in name]
    assert not listed, f"{len(listed)} namespaces are left, such as {listed[0]}; {'; '.join(left[:1])}"
