"""The asset cache: built once, whole or not there, noticed when harmed, split into what a box may see and not."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from proctor.data import assets as cache_module
from proctor.data.assets import (
    Assets,
    cache_root,
    data_state,
    open_assets,
    prepare_assets,
    raw_dir,
    sha256_of,
)
from proctor.data.seeds import RELEASE_SEED, resolve_seed
from proctor.errors import ProctorError, UsageError
from proctor.spec import Protocol
from proctor.tasks.base import PrepareRequest
from tests.data.sample.task import RAW, TASK, SampleTask

ROOT = Path(__file__).resolve().parents[2]


class Builds:
    """Prepares the sample task and counts how often it was really built."""

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "cache"
        self.log = folder / "builds.log"

    def __call__(
        self,
        seed: str = "release",
        tier: str = "mini",
        protocol: Protocol = Protocol.SEALED,
        task: SampleTask = TASK,
    ) -> Assets:
        return prepare_assets(task, tier, protocol, seed, self.cache)

    @property
    def count(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def leftovers(self) -> list[str]:
        return sorted(path.name for path in self.cache.glob("assets/tests/sample/.building-*"))

    def elsewhere(self, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.data.sample.task", str(self.cache)],
            cwd=ROOT,
            env={**os.environ, "SAMPLE_LOG": str(self.log), **env},
            stdout=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builds:
    builds = Builds(tmp_path)
    monkeypatch.setenv("SAMPLE_LOG", str(builds.log))
    return builds


def stored_seed(assets: Assets) -> int:
    return int(json.loads((assets.private / "data_seed.json").read_text())["seed"])


def test_a_second_call_builds_nothing_and_gives_the_same(build: Builds) -> None:
    first = build()
    assert build() == first
    assert build.count == 1
    assert sorted(p.name for p in first.public.rglob("*.npy")) == ["x.npy"]
    assert sorted(p.name for p in first.private.iterdir()) == ["data_seed.json", "y.npy"]


def test_the_release_seed_is_the_constant_one_and_digests_agree_between_caches(build: Builds, tmp_path: Path) -> None:
    first = build()
    assert stored_seed(first) == RELEASE_SEED and first.seed_label == "release"
    other = prepare_assets(TASK, "mini", Protocol.SEALED, "release", tmp_path / "other")
    assert other.digest == first.digest and other.public != first.public


def test_what_the_content_depends_on_makes_a_new_entry(build: Builds, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = SampleTask()
    newer.version = "2"
    entries = {build().public, build("7").public, build(protocol=Protocol.PUBLISHED).public}
    entries.add(build(task=newer).public)
    monkeypatch.setattr(cache_module, "sha256_of", lambda path: "0" * 64 if path.name == "task.py" else sha256_of(path))
    entries.add(build().public)  # as if task.py had been edited
    assert len(entries) == build.count == 5


def test_a_number_is_a_seed_however_it_is_written(build: Builds) -> None:
    first = build("7")
    assert stored_seed(first) == 7 and first.seed_label == "7"
    assert build("007") == first
    assert first.digest != build().digest


@pytest.mark.parametrize("seed", ["", "-1", "1.5", "latest", "9223372036854775808", "١", "fresh-1"])
def test_anything_else_is_not_a_seed(build: Builds, seed: str) -> None:
    with pytest.raises(UsageError, match="is not a data seed"):
        build(seed)
    assert build.count == 0


def test_the_largest_seed_is_accepted() -> None:
    assert resolve_seed("9223372036854775807").value == 2**63 - 1


def test_fresh_data_are_new_each_time_secret_and_found_again_by_digest(build: Builds) -> None:
    first, second = build("fresh"), build("fresh")
    assert first.digest != second.digest and build.count == 2
    assert first.public.parent.name == f"fresh-{first.digest[:24]}"
    secret = stored_seed(first)
    assert first.seed_label == "fresh" and str(secret) not in repr(first) + repr(resolve_seed("fresh"))
    shown = first.public.parent / "manifest.json"
    assert str(secret) not in shown.read_text()
    assert open_assets(TASK, first.digest, build.cache) == first


def test_assets_that_are_gone_cannot_be_opened(build: Builds) -> None:
    built = build("fresh")
    (built.private / "y.npy").unlink()
    with pytest.raises(ProctorError, match="have changed since they were built"):
        open_assets(TASK, built.digest, build.cache)
    with pytest.raises(ProctorError, match="are not in"):
        open_assets(TASK, "0" * 64, build.cache)


def test_files_are_read_only_and_private_is_for_the_owner(build: Builds) -> None:
    old = os.umask(0o077)
    try:
        built = build()
    finally:
        os.umask(old)
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in [built.public, *built.public.parent.rglob("*")]}
    assert modes[built.private] == 0o700
    assert modes[built.public] == modes[built.public / "train"] == 0o755
    assert {mode for p, mode in modes.items() if p.is_file() and p.name != "manifest.json"} == {0o444}


@pytest.mark.parametrize(
    "harm", ["truncate", "truncate, same time", "same size", "delete", "add", "manifest", "symlink"]
)
def test_a_harmed_entry_is_noticed_and_built_again(build: Builds, harm: str) -> None:
    built = build()
    victim = built.private / "y.npy"
    victim.chmod(0o644)
    content = victim.read_bytes()
    facts = victim.stat()
    if harm.startswith("truncate"):
        os.truncate(victim, 40)
        if "same time" in harm:
            os.utime(victim, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    elif harm == "same size":
        victim.write_bytes(content[:-1] + b"!")
    elif harm == "delete":
        victim.unlink()
    elif harm == "add":
        (built.public / "answers.npy").write_bytes(content)
    elif harm == "manifest":
        os.truncate(built.public.parent / "manifest.json", 30)
    else:
        victim.rename(build.cache / "elsewhere.npy")
        victim.symlink_to(build.cache / "elsewhere.npy")
    again = build()
    assert build.count == 2
    assert again == built
    assert victim.read_bytes() == content and not victim.is_symlink()
    assert not (built.public / "answers.npy").exists()


def test_a_copied_cache_is_checked_by_content_once(build: Builds, monkeypatch: pytest.MonkeyPatch) -> None:
    built = build()
    os.utime(built.private / "y.npy", ns=(1, 1))
    assert build() == built
    hashed: list[Path] = []
    monkeypatch.setattr(cache_module, "sha256_of", lambda path: hashed.append(path) or sha256_of(path))
    assert build() == built
    assert [path.name for path in hashed] == ["task.py"]  # the key; no asset
    assert build.count == 1


def test_the_full_tier_asks_for_its_published_files(build: Builds) -> None:
    assert data_state(TASK, "mini", build.cache) == "generated"
    assert data_state(TASK, "full", build.cache) == "missing"
    with pytest.raises(ProctorError, match=r"published\.bin") as caught:
        build(tier="full")
    assert caught.value.hint == "proctor fetch sample"
    raw_dir(TASK, build.cache).mkdir(parents=True)
    (raw_dir(TASK, build.cache) / "published.bin").write_bytes(RAW)
    assert data_state(TASK, "full", build.cache) == "ready"
    assert (build(tier="full").public / "raw.bin").read_bytes() == RAW


def test_an_unknown_tier_is_a_usage_error(build: Builds) -> None:
    with pytest.raises(UsageError, match="no tier 'huge'"):
        build(tier="huge")


def test_two_processes_build_once(build: Builds) -> None:
    workers = [build.elsewhere(SAMPLE_SLEEP="1.0") for _ in range(2)]
    digests = {worker.communicate(timeout=60)[0].strip() for worker in workers}
    assert [worker.returncode for worker in workers] == [0, 0]
    assert digests == {build().digest}
    assert build.count == 1


def test_what_a_killed_builder_left_is_never_used(build: Builds, tmp_path: Path) -> None:
    marker = tmp_path / "half way"
    worker = build.elsewhere(SAMPLE_HANG=str(marker))
    deadline = time.monotonic() + 60
    while not marker.exists():
        assert worker.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    worker.kill()
    worker.communicate()
    assert len(build.leftovers()) == 1
    built = build()
    assert build.count == 2
    assert np.load(built.private / "y.npy").shape == (10,)
    assert build.leftovers() == []


def test_a_full_disk_is_a_clean_error_and_leaves_nothing(build: Builds) -> None:
    class Fills(SampleTask):
        def prepare(self, request: PrepareRequest) -> None:
            (request.public / "some.bin").write_bytes(b"x")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(ProctorError, match="No space left") as caught:
        build(task=Fills())
    assert "free some space" in caught.value.hint
    assert build.leftovers() == [] and not list(build.cache.rglob("some.bin"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_the_short_write_that_numpy_reports_counts_as_a_full_disk(build: Builds) -> None:
    class Fills(SampleTask):
        def prepare(self, request: PrepareRequest) -> None:
            with open("/dev/full", "wb", buffering=0) as full:
                np.ones(100_000).tofile(full)

    with pytest.raises(ProctorError) as caught:
        build(task=Fills())
    assert "free some space" in caught.value.hint
    assert build.leftovers() == []


def test_a_fault_of_the_task_is_not_dressed_up_as_a_full_disk(build: Builds) -> None:
    class Broken(SampleTask):
        def prepare(self, request: PrepareRequest) -> None:
            (request.public / "nowhere" / "x").write_bytes(b"")

    with pytest.raises(FileNotFoundError):
        build(task=Broken())
    assert build.leftovers() == []


def test_links_among_the_built_files_are_refused(build: Builds) -> None:
    class Links(SampleTask):
        def prepare(self, request: PrepareRequest) -> None:
            (request.public / "answers").symlink_to(request.private)

    with pytest.raises(ProctorError, match="made a link or a special file"):
        build(task=Links())
    assert build.leftovers() == []


def test_a_cache_that_cannot_be_made_is_a_clean_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ProctorError) as caught:
        prepare_assets(TASK, "mini", Protocol.SEALED, "release", tmp_path / "cache")
    assert "PROCTOR_CACHE" in caught.value.hint


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PROCTOR_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_root() == tmp_path / ".cache/proctor"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_root() == tmp_path / ".cache/proctor"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "xdg/proctor"
    monkeypatch.setenv("PROCTOR_CACHE", "~/own")
    assert cache_root() == tmp_path / "own"
