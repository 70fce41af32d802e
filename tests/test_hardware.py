"""The machine's facts, read from trees that tests write; and versions, read without importing anything."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from proctor import __version__, hardware
from proctor.errors import InfrastructureError
from tests.support.fake_nvml import FakeNvml, gpu


def write(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")


def test_this_machine_has_all_its_facts() -> None:
    facts = hardware.hardware()
    assert facts["cpu"] and facts["kernel"].endswith(platform.release())
    assert 0 < facts["cores"] <= (os.cpu_count() or 1)
    assert 0 < facts["memory_bytes"] <= psutil.virtual_memory().total
    assert facts["gpus"] == [] and facts["driver"] is None


def test_leased_gpus_come_with_name_memory_and_driver() -> None:
    facts = hardware.hardware([gpu(1)], FakeNvml())
    assert facts["gpus"] == [{"name": "Test GPU", "memory_bytes": 80 * 1024**3}]
    assert facts["driver"] == "580.1"


def test_the_tightest_quota_of_a_version_2_group_and_its_parents_counts(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "self": "0::/a/b",
            "fs/cpu.max": "max 100000",
            "fs/a/cpu.max": "70000 100000",
            "fs/a/b/cpu.max": "50000 100000",
            "fs/a/memory.max": "4096",
            "fs/a/b/memory.max": "max",
        },
    )
    assert hardware.usable_cores(tmp_path / "fs", tmp_path / "self") == 0.5
    assert hardware.usable_memory(tmp_path / "fs", tmp_path / "self") == 4096


def test_version_1_groups_count_too(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "self": "5:memory:/job\n4:cpu,cpuacct:/job\n0::/",
            "fs/cpu,cpuacct/job/cpu.cfs_quota_us": "25000",
            "fs/cpu,cpuacct/job/cpu.cfs_period_us": "100000",
            "fs/memory/job/memory.limit_in_bytes": "8192",
        },
    )
    assert hardware.usable_cores(tmp_path / "fs", tmp_path / "self") == 0.25
    assert hardware.usable_memory(tmp_path / "fs", tmp_path / "self") == 8192


def test_in_a_container_the_groups_own_folder_is_the_top(tmp_path: Path) -> None:
    write(tmp_path, {"self": "0::/not/mounted/here", "fs/cpu.max": "10000 100000", "fs/memory.max": "123"})
    assert hardware.usable_cores(tmp_path / "fs", tmp_path / "self") == 0.1
    assert hardware.usable_memory(tmp_path / "fs", tmp_path / "self") == 123


def test_without_limits_affinity_and_memory_of_the_machine_count(tmp_path: Path) -> None:
    write(tmp_path, {"self": "4:cpu:/\n0::/", "fs/cpu/cpu.cfs_quota_us": "-1", "fs/cpu/cpu.cfs_period_us": "100000"})
    assert hardware.usable_cores(tmp_path / "fs", tmp_path / "self") == len(os.sched_getaffinity(0))
    assert hardware.usable_memory(tmp_path / "fs", tmp_path / "self") == psutil.virtual_memory().total


def test_the_processors_name(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC 9654\n\nprocessor\t: 1\n")
    assert hardware.cpu_model(tmp_path / "cpuinfo") == "AMD EPYC 9654"
    assert hardware.cpu_model(tmp_path / "none") == (platform.processor() or platform.machine())


def test_versions_are_those_of_the_interpreters_installed_packages() -> None:
    found = hardware.versions(sys.executable)
    assert found["proctor"] == __version__
    assert found["python"] == platform.python_version()
    assert found["numpy"] == importlib.metadata.version("numpy")


def test_versions_come_from_metadata_so_that_a_broken_package_still_has_one(tmp_path: Path) -> None:
    """A venv whose torch cannot be imported: its version is told all the same, and a missing package has none."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path)], check=True)
    site = next(tmp_path.glob("lib/python*/site-packages"))
    (site / "torch-9.9.9.dist-info").mkdir()
    (site / "torch-9.9.9.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9.9\n")
    (site / "torch.py").write_text("raise SystemExit('imported')\n")
    found = hardware.versions(str(tmp_path / "bin/python"))
    assert found == {"proctor": __version__, "python": platform.python_version(), "torch": "9.9.9"}
    # Asked once: the interpreter may be gone the second time.
    (tmp_path / "bin/python").unlink()
    assert hardware.versions(str(tmp_path / "bin/python")) == found


def test_an_interpreter_that_does_not_run_is_an_infrastructure_error(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="does not run"):
        hardware.versions(str(tmp_path / "python"))
