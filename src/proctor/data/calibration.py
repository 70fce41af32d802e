"""y_s and y_r: what the starting and the reference solution score, and whose measurement that is."""

from __future__ import annotations

from proctor.tasks.base import Calibration, Task


def calibration_of(task: Task, tier: str, device: str) -> Calibration:
    """The calibration to normalise with: the shipped one, where there is one for this tier and device.

    A full tier's figures were measured on a GPU; timings on another device cannot be compared with them.
    """
    shipped = task.calibrations.get(tier)
    if shipped is None:
        return Calibration(None, None, source="not calibrated")
    return shipped
