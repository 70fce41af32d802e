"""The kinds of box, by name."""

from __future__ import annotations

from proctor.box.base import BoxKind
from proctor.box.bwrap import BwrapKind
from proctor.box.none import NoneKind
from proctor.errors import UsageError

KINDS: dict[str, BoxKind] = {kind.name: kind for kind in (BwrapKind(), NoneKind())}


def get_kind(name: str) -> BoxKind:
    """A kind of box by name."""
    if name not in KINDS:
        raise UsageError(f"there is no box {name!r}", f"boxes: {', '.join(KINDS)}")
    return KINDS[name]
