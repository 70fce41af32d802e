"""The asset cache: each task's data, built once per key, split into `public/` (the box's /data) and `private/`.

    $PROCTOR_CACHE/raw/<suite>/<task>/             published files, as fetched
    $PROCTOR_CACHE/assets/<suite>/<task>/<entry>/  public/  private/  manifest.json

An entry is built in a temporary folder under a lock and renamed into place, so that it is whole or not there. Its
manifest records every file's hash, size and modification time; an entry whose files no longer agree is built again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock

from proctor.data.fetch import missing, sha256_of
from proctor.data.seeds import DataSeed, resolve_seed
from proctor.errors import ProctorError, UsageError
from proctor.jsonio import write_json
from proctor.spec import Protocol
from proctor.tasks.base import PrepareRequest, RemoteFile, Task

SCHEMA = 1
MANIFEST = "manifest.json"
SEED_FILE = "data_seed.json"
"""In `private/`: the seed that the entry was built from, so that a fresh one can be looked up by the host."""
SIDES = ("public", "private")
FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, None})
"""numpy reports a short write as an OSError without a number."""
NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


@dataclass(frozen=True)
class Assets:
    """One built entry of the cache.

    Attributes:
        public: Folder that becomes the box's /data.
        private: Folder that never leaves the host (mode 0700).
        digest: sha256 over the sorted relative paths and the contents of both folders, hex.
        seed_label: `release`, `fresh` or the number; never the value of a fresh seed.
    """

    public: Path
    private: Path
    digest: str
    seed_label: str


def cache_root() -> Path:
    """The cache folder: $PROCTOR_CACHE, else $XDG_CACHE_HOME/proctor, else ~/.cache/proctor. It need not exist."""
    if own := os.environ.get("PROCTOR_CACHE"):
        return Path(own).expanduser().absolute()
    shared = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    # The XDG specification asks for a relative path to be ignored.
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "proctor"


def raw_dir(task: Task, cache: Path | None = None) -> Path:
    """Where the published files of a task lie once fetched."""
    return (cache or cache_root()) / "raw" / task.suite / task.id


def tier_files(task: Task, tier: str) -> tuple[RemoteFile, ...]:
    """The published files that a tier needs: all of the task's for `full`, none for any other."""
    return task.files if tier == "full" else ()


def data_state(task: Task, tier: str, cache: Path | None = None) -> Literal["ready", "missing", "generated"]:
    """Whether a tier's data are here: fetched and checked, yet to be fetched, or made on this machine."""
    files = tier_files(task, tier)
    if not files:
        return "generated"
    return "missing" if missing(files, raw_dir(task, cache)) else "ready"


def prepare_assets(task: Task, tier: str, protocol: Protocol, data_seed: str, cache: Path | None = None) -> Assets:
    """The assets of a task, from the cache or newly built. Callers in several processes build once and share.

    `fresh` builds anew at each call; `open_assets` finds such an entry again by its digest.

    Args:
        task: The task.
        tier: One of its tiers.
        protocol: As in the run; a task may split its data differently.
        data_seed: `release`, `fresh` or a decimal number; see `resolve_seed`.
        cache: Cache folder; `cache_root()` if None.

    Raises:
        UsageError: No such tier, or not a data seed.
        ProctorError: Published files are missing, or the cache cannot be written.
    """
    if tier not in task.tiers:
        raise UsageError(f"{task.id} has no tier {tier!r}", f"its tiers: {', '.join(task.tiers)}")
    seed = resolve_seed(data_seed)
    raw = _raw(task, tier, cache)
    store = _store(task, cache)
    key = "fresh" if seed.fresh else _key(task, tier, protocol, seed)
    try:
        store.mkdir(parents=True, exist_ok=True)
        with FileLock(store / f".{key}.lock"):
            found = None if seed.fresh else _reuse(store / key)
            return found or _build(task, tier, protocol, seed, raw, store, key)
    except OSError as error:
        hint = _hint(error, store)
        if not hint:
            raise  # a fault of the task's own code
        raise ProctorError(f"the data of {task.full_id} could not be built in {store}: {error}", hint) from error


def open_assets(task: Task, digest: str, cache: Path | None = None) -> Assets:
    """The entry with this digest, as an earlier `prepare_assets` built it: for resuming and for scoring again.

    Raises:
        ProctorError: It is no longer in the cache, or not unharmed.
    """
    store = _store(task, cache)
    for manifest in sorted(store.glob(f"*/{MANIFEST}")):
        if _read_manifest(manifest.parent).get("digest") == digest:
            found = _reuse(manifest.parent)
            if found is not None and found.digest == digest:
                return found
    raise ProctorError(
        f"the data {digest[:16]} of {task.full_id} are not in {store}, or have changed since they were built",
        "they come back by themselves for the data seed `release` or a number, from the same version of the task; "
        "data from a fresh seed cannot be built again",
    )


def _store(task: Task, cache: Path | None) -> Path:
    return (cache or cache_root()) / "assets" / task.suite / task.id


def _raw(task: Task, tier: str, cache: Path | None) -> Path | None:
    files = tier_files(task, tier)
    if not files:
        return None
    raw = raw_dir(task, cache)
    lacking = missing(files, raw)
    if lacking:
        raise ProctorError(
            f"{task.full_id} at tier {tier} needs published files that are not in {raw}: "
            + ", ".join(file.path for file in lacking),
            f"proctor fetch {task.id}",
        )
    return raw


def _key(task: Task, tier: str, protocol: Protocol, seed: DataSeed) -> str:
    """Name of the entry: readable, then a hash of all that its content depends on."""
    source = {path.name: sha256_of(path) for name in ("data.py", "task.py") if (path := task.folder / name).is_file()}
    parts = {
        "schema": SCHEMA,
        "task": task.full_id,
        "tier": tier,
        "protocol": protocol.value,
        "seed": seed.value,
        "data_version": task.data_version(),
        "raw": {file.path: file.sha256 for file in tier_files(task, tier)},
        "source": source,
    }
    text = json.dumps(parts, sort_keys=True)
    return f"{tier}-{protocol.value}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def _build(
    task: Task, tier: str, protocol: Protocol, seed: DataSeed, raw: Path | None, store: Path, key: str
) -> Assets:
    """Build an entry and put it in place. The caller holds the lock of `key`."""
    prefix = f".building-{key}-"
    for left in store.glob(f"{prefix}*"):  # by a builder that was killed: we hold its lock
        shutil.rmtree(left)
    work = Path(tempfile.mkdtemp(dir=store, prefix=prefix))
    try:
        for side in SIDES:
            (work / side).mkdir(mode=0o700 if side == "private" else 0o755)
        task.prepare(
            PrepareRequest(tier, protocol, seed=seed.value, raw=raw, public=work / "public", private=work / "private")
        )
        write_json(work / "private" / SEED_FILE, {"seed": seed.value})
        files = _seal(work, task)
        digest = _digest(files)
        entry = store / (f"fresh-{digest[:24]}" if seed.fresh else key)
        write_json(work / MANIFEST, {"schema": SCHEMA, "digest": digest, "seed_label": seed.label, "files": files})
        work.chmod(0o755)
        if entry.exists():
            shutil.rmtree(entry)
        os.rename(work, entry)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return Assets(entry / "public", entry / "private", digest, seed.label)


def _seal(work: Path, task: Task) -> dict[str, dict[str, Any]]:
    """Make the built files read-only and durable; returns the manifest's table of them."""
    for folder in [work / "public", *(work / "public").rglob("*")]:
        if folder.is_dir() and not folder.is_symlink():
            folder.chmod(0o755)  # whatever the umask: a box may run under another user id
    (work / "private").chmod(0o700)
    files = _scan(work)
    if files is None:
        raise ProctorError(
            f"prepare of {task.full_id} made a link or a special file", "a task's data may be plain files only"
        )
    for relative, facts in files.items():
        path = work / relative
        path.chmod(0o444)
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
        facts["sha256"] = sha256_of(path)
    return files


def _scan(entry: Path) -> dict[str, dict[str, Any]] | None:
    """Size and modification time of every file of both sides, by relative path; None if one is not a plain file."""
    files: dict[str, dict[str, Any]] = {}
    for side in SIDES:
        for path in sorted((entry / side).rglob("*")):
            facts = path.lstat()
            if stat.S_ISDIR(facts.st_mode):
                continue
            if not stat.S_ISREG(facts.st_mode):
                return None
            files[path.relative_to(entry).as_posix()] = {"size": facts.st_size, "mtime_ns": facts.st_mtime_ns}
    return files


def _digest(files: dict[str, dict[str, Any]]) -> str:
    total = hashlib.sha256()
    for relative in sorted(files):
        total.update(f"{relative}\0{files[relative]['sha256']}\n".encode())
    return total.hexdigest()


def _read_manifest(entry: Path) -> dict[str, Any]:
    """The manifest of an entry; empty if there is none that can be used."""
    try:
        value = json.loads((entry / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) and value.get("schema") == SCHEMA else {}


def _reuse(entry: Path) -> Assets | None:
    """The entry, if its files are those of its manifest; None if it must be built (again).

    Sizes and modification times are compared; where only times differ (a copied cache, say) the hashes decide.
    """
    manifest = _read_manifest(entry)
    files = _scan(entry)
    recorded = manifest.get("files")
    if files is None or not isinstance(recorded, dict) or files.keys() != recorded.keys():
        return None
    touched = False
    for relative, facts in files.items():
        known = recorded[relative]
        if facts["size"] != known["size"]:
            return None
        if facts["mtime_ns"] != known["mtime_ns"]:
            if sha256_of(entry / relative) != known["sha256"]:
                return None
            known["mtime_ns"] = facts["mtime_ns"]
            touched = True
    if touched:
        write_json(entry / MANIFEST, manifest)
    return Assets(entry / "public", entry / "private", manifest["digest"], manifest["seed_label"])


def _hint(error: OSError, store: Path) -> str:
    """What to do about a failed write, or nothing if it is not the disk's doing."""
    if error.errno in FULL_DISK:
        return f"the disk of {store} is full: free some space, or move the cache (PROCTOR_CACHE)"
    if error.errno in NOT_ALLOWED:
        return "make the cache writable, or put it elsewhere with PROCTOR_CACHE"
    return ""
