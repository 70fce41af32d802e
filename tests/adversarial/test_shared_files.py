"""Candidates share no file of a submission: what one reads of it must not show to the other through the page cache."""

from __future__ import annotations

from pathlib import Path

from proctor.scoring.pool import show


def test_each_candidate_has_its_own_copy_of_the_submission(tmp_path: Path) -> None:
    files = tmp_path / "files"
    (files / "deep").mkdir(parents=True)
    (files / "deep" / "pad.bin").write_bytes(b"x" * 4096)
    places = []
    for name in ("scored", "audited"):
        slot = tmp_path / name
        slot.mkdir()
        show(files, slot)
        places.append((slot / "deep" / "pad.bin").stat())
    original = (files / "deep" / "pad.bin").stat()
    assert len({(p.st_dev, p.st_ino) for p in (*places, original)}) == 3
    assert all(p.st_nlink == 1 for p in places)
