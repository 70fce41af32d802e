"""Fetching: what arrives is right or it is not there, and every failure says what to do."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from proctor.data import fetch as fetching
from proctor.data.fetch import fetch, missing
from proctor.errors import ProctorError
from proctor.tasks.base import RemoteFile
from tests.data.web import MisbehavingServer, serving

CONTENT = bytes(range(256)) * 1200  # 300 KiB
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def server() -> Iterator[MisbehavingServer]:
    with serving(CONTENT) as running:
        yield running


class Fetcher:
    """`fetch` into a folder, with its pauses and its progress kept instead of shown."""

    def __init__(self, raw: Path) -> None:
        self.raw = raw
        self.pauses: list[float] = []
        self.progress: list[tuple[str, int, int]] = []

    def __call__(self, *files: RemoteFile, source: Path | None = None) -> None:
        fetch(
            files,
            self.raw,
            source=source,
            progress=lambda *step: self.progress.append(step),
            sleep=self.pauses.append,
        )


@pytest.fixture
def get(tmp_path: Path) -> Fetcher:
    return Fetcher(tmp_path / "raw")


def remote(*urls: str, path: str = "sub/file.bin", content: bytes = CONTENT) -> RemoteFile:
    return RemoteFile(path, urls, len(content), hashlib.sha256(content).hexdigest(), "CC0")


def part_of(raw: Path) -> Path:
    return raw / f"sub/file.bin.{SHA256[:12]}.part"


def test_a_file_arrives_whole_with_progress_and_leaves_no_part(server: MisbehavingServer, get: Fetcher) -> None:
    get(remote(server.url("/good")))
    assert (get.raw / "sub/file.bin").read_bytes() == CONTENT
    assert get.progress[0] == ("sub/file.bin", 0, len(CONTENT))
    assert get.progress[-1] == ("sub/file.bin", len(CONTENT), len(CONTENT))
    assert not part_of(get.raw).exists()


def test_files_that_are_right_are_not_touched(server: MisbehavingServer, get: Fetcher) -> None:
    file = remote(server.url("/good"))
    get(file)
    before = (get.raw / file.path).stat()
    get(file)
    after = (get.raw / file.path).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert len(server.seen) == 1


def test_a_truncated_transfer_is_resumed_where_it_stopped(server: MisbehavingServer, get: Fetcher) -> None:
    get(remote(server.url("/cut/100000")))
    assert (get.raw / "sub/file.bin").read_bytes() == CONTENT
    assert [asked for _, asked in server.seen] == [None, "bytes=100000-", "bytes=200000-", "bytes=300000-"]


def test_a_transfer_that_gains_a_little_each_time_is_not_given_up(server: MisbehavingServer, get: Fetcher) -> None:
    get(remote(server.url("/cut/20000")))
    assert len(server.seen) > 3 * fetching.ROUNDS
    assert max(get.pauses) == fetching.BACKOFF_S


def test_a_part_of_an_earlier_call_is_resumed(server: MisbehavingServer, get: Fetcher) -> None:
    part_of(get.raw).parent.mkdir(parents=True)
    part_of(get.raw).write_bytes(CONTENT[:1000])
    get(remote(server.url("/good")))
    assert server.seen == [("/good", "bytes=1000-")]
    assert (get.raw / "sub/file.bin").read_bytes() == CONTENT


def test_a_part_with_wrong_bytes_is_dropped_and_the_same_address_tried_cleanly(
    server: MisbehavingServer, get: Fetcher
) -> None:
    part_of(get.raw).parent.mkdir(parents=True)
    part_of(get.raw).write_bytes(b"x" * 1000)
    get(remote(server.url("/good")))
    assert server.seen == [("/good", "bytes=1000-"), ("/good", None)]
    assert (get.raw / "sub/file.bin").read_bytes() == CONTENT


def test_a_server_that_ignores_ranges_is_read_from_the_start(server: MisbehavingServer, get: Fetcher) -> None:
    part_of(get.raw).parent.mkdir(parents=True)
    part_of(get.raw).write_bytes(CONTENT[:1000])
    get(remote(server.url("/norange")))
    assert server.seen == [("/norange", "bytes=1000-")]
    assert (get.raw / "sub/file.bin").read_bytes() == CONTENT


def test_a_server_that_cuts_and_cannot_resume_is_given_up_in_the_end(server: MisbehavingServer, get: Fetcher) -> None:
    with pytest.raises(ProctorError, match=r"stopped at 100,000 of 307,200 bytes"):
        get(remote(server.url("/cutnorange/100000")))
    # One round that gained, then ROUNDS that did not; the pause doubles.
    assert len(server.seen) == fetching.ROUNDS + 1
    assert get.pauses == [1.0, 1.0, 2.0, 4.0]


@pytest.mark.parametrize("first", ["/status/404", "/status/503", "/wrong", "/short", "/endless"])
def test_a_mirror_helps_where_the_first_address_fails(server: MisbehavingServer, get: Fetcher, first: str) -> None:
    get(remote(server.url(first), server.url("/good")))
    assert (get.raw / "sub/file.bin").read_bytes() == CONTENT
    assert [path for path, _ in server.seen] == [first, "/good"]


def test_a_mirror_helps_where_nothing_listens(server: MisbehavingServer, get: Fetcher) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: the connection is refused
        get(remote(f"http://127.0.0.1:{closed.getsockname()[1]}/x", server.url("/good")))
    assert (get.raw / "sub/file.bin").read_bytes() == CONTENT


def test_a_server_that_hangs_times_out(
    server: MisbehavingServer, get: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "TIMEOUT_S", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        get(remote(f"http://127.0.0.1:{silent.getsockname()[1]}/x", server.url("/good")))
    assert (get.raw / "sub/file.bin").read_bytes() == CONTENT


def test_the_error_names_the_file_each_address_its_reason_and_the_way_out(
    server: MisbehavingServer, get: Fetcher
) -> None:
    gone, wrong, busy = server.url("/status/404"), server.url("/wrong"), server.url("/status/503")
    with pytest.raises(ProctorError) as caught:
        get(remote(gone, wrong, busy))
    text = str(caught.value)
    assert "sub/file.bin" in text and "--from DIR" in text and SHA256 in text
    assert f"{gone}: HTTP 404" in text
    other = hashlib.sha256(bytes(255 - byte for byte in CONTENT)).hexdigest()
    assert f"{wrong}: wrong content: sha256 {other}" in text
    assert f"{busy}: HTTP 503" in text
    paths = [path for path, _ in server.seen]
    assert (paths.count("/status/404"), paths.count("/wrong"), paths.count("/status/503")) == (1, 1, fetching.ROUNDS)
    assert not (get.raw / "sub/file.bin").exists()


def test_a_file_without_addresses_says_how_to_bring_it(get: Fetcher) -> None:
    with pytest.raises(ProctorError, match="no public address") as caught:
        get(remote())
    assert "--from DIR" in caught.value.hint


def test_too_little_room_is_found_before_anything_is_fetched(
    server: MisbehavingServer, get: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=10**9, used=10**9, free=1000))
    with pytest.raises(ProctorError, match=r"needs 0\.3 MB for the files and has 0\.0 MB free"):
        get(remote(server.url("/good")))
    assert server.seen == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_that_fills_up_on_the_way_is_a_clean_error(server: MisbehavingServer, get: Fetcher) -> None:
    part_of(get.raw).parent.mkdir(parents=True)
    part_of(get.raw).symlink_to("/dev/full")
    with pytest.raises(ProctorError, match=r"the disk of .* is full"):
        get(remote(server.url("/good")))
    assert not (get.raw / "sub/file.bin").exists()


def test_a_corrupted_file_is_missing_and_fetched_again(server: MisbehavingServer, get: Fetcher) -> None:
    file = remote(server.url("/good"))
    get(file)
    place = get.raw / file.path
    place.write_bytes(CONTENT[:-1] + b"!")
    assert missing([file], get.raw) == [file]
    get(file)
    assert missing([file], get.raw) == []
    assert place.read_bytes() == CONTENT


def test_a_known_hash_is_not_computed_again(get: Fetcher, monkeypatch: pytest.MonkeyPatch) -> None:
    file = remote(path="file.bin")
    get.raw.mkdir()
    (get.raw / "file.bin").write_bytes(CONTENT)
    assert missing([file], get.raw) == []
    computed: list[Path] = []
    monkeypatch.setattr(fetching, "sha256_of", lambda path: computed.append(path) or SHA256)
    assert missing([file], get.raw) == []
    assert computed == []
    os.utime(get.raw / "file.bin", ns=(0, 0))
    assert missing([file], get.raw) == []
    assert computed == [get.raw / "file.bin"]


@pytest.mark.parametrize("path", ["../out.bin", "/etc/out.bin", ""])
def test_a_place_outside_the_raw_folder_is_refused(get: Fetcher, path: str) -> None:
    with pytest.raises(ProctorError, match="no place inside"):
        get(remote(path=path))


def test_from_finds_a_file_by_name_at_any_depth(tmp_path: Path, get: Fetcher) -> None:
    (tmp_path / "disk/a").mkdir(parents=True)
    (tmp_path / "disk/b").mkdir()
    (tmp_path / "disk/a/file.bin").write_bytes(b"an old version")
    (tmp_path / "disk/b/file.bin").write_bytes(CONTENT)
    get(remote(), source=tmp_path / "disk")
    assert (get.raw / "sub/file.bin").read_bytes() == CONTENT
    assert get.progress[-1] == ("sub/file.bin", len(CONTENT), len(CONTENT))


def test_from_knows_the_name_that_a_browser_gives(tmp_path: Path, get: Fetcher) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/release 2.bin").write_bytes(CONTENT)
    get(remote("https://example.org/files/release%202.bin?download=1"), source=tmp_path / "disk")
    assert (get.raw / "sub/file.bin").read_bytes() == CONTENT


def test_from_takes_a_single_file_of_any_name(tmp_path: Path, get: Fetcher) -> None:
    (tmp_path / "whatever").write_bytes(CONTENT)
    get(remote(), source=tmp_path / "whatever")
    assert (get.raw / "sub/file.bin").read_bytes() == CONTENT


def test_from_names_expected_and_found_hash_and_still_takes_the_others(tmp_path: Path, get: Fetcher) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    (disk / "file.bin").write_bytes(CONTENT[:-1] + b"!")
    (disk / "right.bin").write_bytes(b"right")
    right, absent = remote(path="right.bin", content=b"right"), remote(path="absent.bin")
    with pytest.raises(ProctorError) as caught:
        get(remote(), absent, right, source=disk)
    text = str(caught.value)
    assert f"expected 307,200 bytes, sha256 {SHA256}" in text
    assert hashlib.sha256(CONTENT[:-1] + b"!").hexdigest() in text
    assert "absent.bin: no file named absent.bin there" in text
    assert missing([right], get.raw) == []
    assert not (get.raw / "sub/file.bin").exists()


def test_from_a_folder_that_is_not_there(tmp_path: Path, get: Fetcher) -> None:
    with pytest.raises(ProctorError, match="does not exist"):
        get(remote(), source=tmp_path / "nowhere")
