"""What a runtime shows of the host, and what stays hidden in it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import proctor
from proctor.box import mounts, runtime
from proctor.box.runtime import Runtime, own_paths, runtime_of
from proctor.errors import InfrastructureError
from tests.box.support import Ended, Room, needs_box

CANARY = "CANARY-of-the-answers"
LOOK = """
import importlib.util, os, sys
for top in {tops!r}:
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            try:
                if os.path.isfile(path) and os.path.getsize(path) < 1000 and {canary!r} in open(path).read():
                    print("FOUND", path)
            except (OSError, UnicodeDecodeError):
                pass
found = {{name: importlib.util.find_spec(name) for name in ("proctor", "acme_exams", "numpy_like")}}
print("known", *(name for name, spec in found.items() if spec and spec.origin))
print("prefix", sys.prefix)
"""


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Answers about plug-ins are kept for a process's life; here they change."""
    runtime._packages.cache_clear()
    yield
    runtime._packages.cache_clear()


def venv(folder: Path) -> Path:
    """A virtual environment; its site-packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return next(folder.glob("lib/python3*/site-packages"))


def package(site: Path, name: str) -> None:
    (site / name).mkdir()
    (site / name / "__init__.py").write_text(f"# {CANARY}\n")
    (site / f"{name}-1.0.dist-info").mkdir()
    (site / f"{name}-1.0.dist-info" / "METADATA").write_text(f"Name: {name}\n{CANARY}\n")


def look(room: Room, folder: Path, **changes: object) -> Ended:
    python = str(folder / "bin" / "python")
    code = LOOK.format(tops=[str(folder)], canary=CANARY)
    return room.run(python, "-c", code, python=python, **changes)


@needs_box
def test_installed_proctor_and_plugins_are_hidden_and_other_packages_are_not(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = venv(tmp_path / "venv")
    for name in ("proctor", "acme_exams"):
        package(site, name)
    (site / "numpy_like.py").write_text("")
    (site / "__editable__.proctor-1.0.pth").write_text(f"# {CANARY}\n")
    (site / "__editable___acme_exams_1_0_finder.py").write_text(f"# {CANARY}\n")
    monkeypatch.setenv("PROCTOR_TASKS", "acme_exams.tasks.one:TASK")
    on_host = subprocess.run(
        [tmp_path / "venv/bin/python", "-c", LOOK.format(tops=[str(tmp_path / "venv")], canary=CANARY)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert on_host.count("FOUND") == 6, "the files must be there for their absence to mean something"
    assert "known proctor acme_exams numpy_like" in on_host
    ended = look(room, tmp_path / "venv")
    assert "FOUND" not in ended.out
    assert "known numpy_like\n" in ended.out
    assert f"prefix {tmp_path}/venv\n" in ended.out


@needs_box
def test_only_the_environment_is_shown_of_a_folder_that_is_also_a_home_or_a_source_tree(
    room: Room, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    venv(home)
    for name in (".ssh/id", ".git/objects/pack", "src/proctor/reference.py", "notes.txt", "runs/result.json"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(CANARY)
    ended = look(room, home)
    assert "FOUND" not in ended.out
    assert f"prefix {home}\n" in ended.out
    listing = room.run("/bin/ls", "-A", str(home), python=str(home / "bin" / "python")).out.split()
    assert set(listing) <= {"bin", "include", "lib", "lib64", "pyvenv.cfg", "share"}


@needs_box
def test_environment_inside_a_hidden_folder_inside_a_shown_one_is_shown(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout under /usr/src with its environment in it: the checkout goes, the environment stays."""
    system = tmp_path / "system"
    checkout = system / "checkout"
    site = venv(checkout / "venv")
    package(site, "proctor")
    (checkout / "reference.py").write_text(CANARY)
    (system / "tool").write_text("shown")
    monkeypatch.setattr(mounts, "SYSTEM", (*mounts.SYSTEM, str(system)))
    ended = look(room, checkout / "venv", hidden=(checkout,))
    assert "FOUND" not in ended.out
    assert f"prefix {checkout}/venv\n" in ended.out
    python = str(checkout / "venv/bin/python")
    assert room.run("/bin/ls", str(checkout), python=python, hidden=(checkout,)).out == "venv\n"
    assert room.run("/bin/cat", str(system / "tool"), python=python, hidden=(checkout,)).out == "shown"
    assert "reference.py" in room.run("/bin/ls", str(checkout), python=python).out, "it is there unless hidden"


@needs_box
def test_environment_that_is_reached_by_a_link_hides_the_same(room: Room, tmp_path: Path) -> None:
    site = venv(tmp_path / "real")
    package(site, "proctor")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    ended = look(room, tmp_path / "link")
    assert f"prefix {tmp_path}/link\n" in ended.out
    assert "FOUND" not in ended.out


@needs_box
def test_package_that_is_a_link_into_a_shown_folder_is_hidden_there(room: Room, tmp_path: Path) -> None:
    site = venv(tmp_path / "venv")
    place = tmp_path / "venv" / "share" / "proctor"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text(f"# {CANARY}\n")
    (site / "proctor").symlink_to(place)
    assert CANARY in (site / "proctor" / "__init__.py").read_text()
    assert "FOUND" not in look(room, tmp_path / "venv").out


@needs_box
def test_folders_of_the_run_are_hidden_where_a_shown_folder_contains_them(room: Room, tmp_path: Path) -> None:
    folder = tmp_path / "venv"
    cache = venv(folder) / "cache"
    cache.mkdir()
    (cache / "answers.txt").write_text(CANARY)
    assert "FOUND" in look(room, folder).out
    assert "FOUND" not in look(room, folder, hidden=(cache,)).out


def test_own_paths_cover_every_copy_and_the_source_tree(tmp_path: Path) -> None:
    sites = (tmp_path / "base-site", tmp_path / "dist-packages")
    for site in sites:
        site.mkdir()
        package(site, "proctor")
    found = own_paths(Runtime(sys.executable, (), sites))
    assert Path(proctor.__file__).parent in found
    for site in sites:
        assert {site / "proctor", site / "proctor-1.0.dist-info"} <= set(found)
    repository = next((p for p in Path(proctor.__file__).parents if (p / ".git").exists()), None)
    assert repository is None or repository in found


def test_runtime_lists_every_site_folder_of_prefix_and_base() -> None:
    found = runtime_of(sys.executable)
    assert any("site-packages" in str(path) for path in found.site)
    assert all(path.is_dir() for path in found.site)
    roots = {Path(sys.prefix), Path(sys.base_prefix)} - set(runtime.SHOWN_ANYWAY)
    assert roots <= {path.parent for path in found.parts}


def test_interpreter_that_does_not_answer_is_named() -> None:
    with pytest.raises(InfrastructureError, match=r"/no/python does not answer.*\n.*--python"):
        runtime_of("/no/python")
