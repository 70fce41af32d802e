"""The output of a box arrives as bytes, up to a cap, and no writer ever waits for us."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from proctor.box.spawn import OutputPump
from proctor.errors import InfrastructureError
from proctor.spec import MIB, Limits
from tests.box.support import Room, needs_box, until

ODD = b"\x00\xff\xfe\r50%\r100%\r\n\xf0\x9f\x98" + b"\x80\x1b[31m\xc3("


def pump_of(path: Path, cap: int = MIB) -> tuple[OutputPump, int]:
    read, write = os.pipe()
    return OutputPump({read: path}, cap), write


def test_bytes_arrive_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "out"
    pump, write = pump_of(path)
    for byte in ODD:  # a reader that decodes would see every character cut in two
        os.write(write, bytes([byte]))
    os.close(write)
    pump.stop()
    assert path.read_bytes() == ODD
    assert pump.dropped == {path: 0}


def test_over_the_cap_is_counted_dropped_and_told(tmp_path: Path) -> None:
    path = tmp_path / "out"
    pump, write = pump_of(path, cap=1000)
    writer = threading.Thread(target=lambda: (os.write(write, b"x" * (1 << 20)), os.close(write)))
    writer.start()
    writer.join(10.0)
    assert not writer.is_alive(), "the writer was blocked after the cap"
    pump.stop()
    lost = (1 << 20) - 1000
    assert pump.dropped == {path: lost}
    assert path.read_bytes() == b"x" * 1000 + f"\n[proctor: {lost} more bytes were dropped here]\n".encode()


def test_stop_takes_what_is_there_and_does_not_wait_for_who_holds_the_pipe(tmp_path: Path) -> None:
    pump, write = pump_of(tmp_path / "out")
    os.write(write, b"last words")
    began = time.monotonic()
    pump.stop()
    assert time.monotonic() - began < 1.0
    os.close(write)
    assert (tmp_path / "out").read_bytes() == b"last words"


def test_stop_returns_though_somebody_goes_on_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proctor.box.spawn.DRAIN_S", 0.2)
    pump, write = pump_of(tmp_path / "out", cap=10)
    over = threading.Event()

    def flood() -> None:
        try:
            while True:
                os.write(write, b"y" * 65536)
        except BrokenPipeError:
            over.set()

    threading.Thread(target=flood, daemon=True).start()
    assert until(lambda: pump.dropped[tmp_path / "out"] > 0)
    began = time.monotonic()
    pump.stop()
    assert time.monotonic() - began < 2.0
    assert over.wait(5.0)
    os.close(write)


def test_full_disk_costs_the_output_only(tmp_path: Path) -> None:
    full = Path("/dev/full")
    pump, write = pump_of(full)
    os.write(write, b"x" * 5000)
    os.close(write)
    pump.stop()
    assert pump.written == {full: 0}
    assert pump.dropped == {full: 5000}


def test_output_is_appended_so_that_earlier_output_stays(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"before\n")
    pump, write = pump_of(tmp_path / "out")
    os.write(write, b"after")
    os.close(write)
    pump.stop()
    pump.stop()
    assert (tmp_path / "out").read_bytes() == b"before\nafter"


def test_pump_that_cannot_be_made_closes_what_it_was_given(tmp_path: Path) -> None:
    first, second, write = os.open("/dev/null", os.O_RDONLY), *os.pipe()
    with pytest.raises(InfrastructureError, match="output cannot be kept"):
        OutputPump({first: tmp_path / "fine", second: tmp_path / "no" / "folder"}, 10)
    for fd in (first, second):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    os.close(write)


@needs_box
class TestInBoxes:
    def test_line_of_100_megabytes_is_cut_at_the_cap_and_the_box_runs_on(self, room: Room) -> None:
        code = (
            "import os\nfor _ in range(100): os.write(1, b'z' * (1 << 20))\nopen('/workspace/after','w').write('done')"
        )
        ended = room.python(code, limits=Limits(output_bytes=2 * MIB))
        assert ended.status == 0
        assert (room.workspace / "after").read_text() == "done"
        assert room.out.read_bytes()[: 2 * MIB] == b"z" * (2 * MIB)
        assert f"{98 * MIB} more bytes were dropped" in ended.out[2 * MIB :]

    def test_both_streams_arrive_whole(self, room: Room) -> None:
        ended = room.shell("printf 'a\\0b'; printf 'c\\377' >&2")
        assert ended.status == 0
        assert room.out.read_bytes() == b"a\0b"
        assert room.err.read_bytes() == b"c\xff"

    def test_output_closed_or_copied_is_harmless(self, room: Room) -> None:
        ended = room.shell("exec 5>&1 1>&-; echo lost; echo kept >&5; exec 2>&-; (echo again >&5) & wait; exit 3")
        assert ended.status == 3
        assert ended.out == "kept\nagain\n"
