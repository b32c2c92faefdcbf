"""Signatures for people: annotations in `help` as they were written, without quotes."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

K = TypeVar("K")


class _Plain(str):
    """An annotation that `help` shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def readable(kind: type[K]) -> type[K]:
    """Lets `help` show annotations of a class and its bases as they were written."""
    for each in kind.__mro__[:-1]:
        for method in vars(each).values():
            if inspect.isfunction(method):
                setattr(method, "__signature__", _unquoted(inspect.signature(method)))  # noqa: B010
    return kind


def _unquoted(signature: inspect.Signature) -> inspect.Signature:
    def plain(annotation: Any) -> Any:
        is_text = isinstance(annotation, str)
        return _Plain(annotation.replace("values.", "")) if is_text else annotation

    return signature.replace(
        parameters=[
            each.replace(annotation=plain(each.annotation))
            for each in signature.parameters.values()
        ],
        return_annotation=plain(signature.return_annotation),
    )
