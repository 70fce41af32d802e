"""Where the seed of generated data comes from. It stays on the host: no box ever sees it."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field

from proctor.errors import UsageError

RELEASE_SEED = 0x50_52_4F_43_54_4F_52
"""The seed of this release, the same on every machine, so that scores on generated data compare. Changing it changes
every `release` data set, and so needs a new release and new calibrations."""

SEED_BITS = 63
"""Seeds fit a signed 64-bit integer, which every random generator in use accepts."""


@dataclass(frozen=True)
class DataSeed:
    """A seed, and what may be said of it in a result. The value itself is kept out of `repr` and so of logs."""

    value: int = field(repr=False)
    label: str

    @property
    def fresh(self) -> bool:
        return self.label == "fresh"


def resolve_seed(data_seed: str) -> DataSeed:
    """The seed that `--data-seed` names.

    Args:
        data_seed: `release`, `fresh` (a new secret one each call), or a decimal number below 2**63.

    Raises:
        UsageError: It is none of these.
    """
    if data_seed == "release":
        return DataSeed(RELEASE_SEED, "release")
    if data_seed == "fresh":
        return DataSeed(secrets.randbits(SEED_BITS), "fresh")
    if re.fullmatch(r"[0-9]{1,19}", data_seed) and int(data_seed) < 1 << SEED_BITS:
        return DataSeed(int(data_seed), str(int(data_seed)))
    raise UsageError(
        f"{data_seed!r} is not a data seed", "give `release`, `fresh`, or a whole number from 0 up to 2**63 - 1"
    )
