"""What libkda raises and what can_run answers."""

from __future__ import annotations

from typing import NamedTuple


class Error(RuntimeError):
    """A refusal or failure, with the catalogue's code.

    Attributes:
        code: stable code, "KDA-nnnn"; `kda explain KDA-nnnn` tells all about it.
        status: the number nnnn.
        asked: what was asked, e.g. "q: fp16 [128, 4, 64]".
        supported: what is supported.
        way_out: the smallest change that works.
    """

    def __init__(self, message: str, status: int, code: str, asked: str, supported: str, way_out: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.asked = asked
        self.supported = supported
        self.way_out = way_out

    def __reduce__(self):
        return type(self), (str(self), self.status, self.code, self.asked, self.supported, self.way_out)


class Refusal(NamedTuple):
    """Why a problem cannot run: the same facts as Error, as a value."""

    code: str
    status: int
    asked: str
    supported: str
    way_out: str
    message: str


def refuse(status: int, argument: str, found: str, wanted: str, way_out: str | None = None) -> Error:
    """The Error for what the Python layer finds itself: `argument` is `found`, `wanted` would do."""
    from . import _core

    _, code, catalogue = _core.status_text(status)
    asked = f"{argument}: {found}"
    return Error(f"{code}: {catalogue} ({asked}); expected {wanted}", status, code, asked, wanted, way_out or f"pass {wanted}")
