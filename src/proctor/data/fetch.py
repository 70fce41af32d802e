"""Bringing published files to this machine: resumable, from mirrors or from a folder, checked before they count.

A file is written as `NAME.<sha256 prefix>.part` beside its place and renamed into it only once its size and sha256
are right. So whatever stands under its proper name has been right once, and a part of an older version of the file is
never taken up again. Hashes are remembered with size and modification time (`.verified.json`), so that asking which
files are missing does not read gigabytes each time.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from filelock import FileLock

from proctor import __version__
from proctor.errors import ProctorError
from proctor.jsonio import write_json
from proctor.tasks.base import RemoteFile

CHUNK = 1 << 20
TIMEOUT_S = 30.0
"""Limit of one network operation (connect, or one read), not of the whole transfer."""
ROUNDS = 4
"""Rounds over all mirrors in a row that may bring no new byte before we give up."""
BACKOFF_S = 1.0
"""Pause before the second round; it doubles with each further one that brings nothing."""
TEMPORARY = frozenset({408, 425, 429})
"""HTTP answers below 500 that may be different in a moment."""
FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
VERIFIED = ".verified.json"

Progress = Callable[[str, int, int], None]
"""Told (path of the file, bytes here, bytes in all) as a file arrives."""


class _Useless(Exception):
    """This address cannot give the file; asking again will not help."""


class _Interrupted(Exception):
    """This address may give the file another time."""


def fetch(
    files: Sequence[RemoteFile],
    raw: Path,
    *,
    source: Path | None,
    progress: Progress,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Bring every file to `raw/<its path>`. Files that are already right are not touched.

    The caller shows the licences. Two calls on the same folder take turns.

    Args:
        files: What is wanted.
        raw: Folder to fill; made if need be.
        source: A folder that is searched for the files by name, at any depth, or the one file itself; nothing is
            then downloaded. None: from the files' addresses, in order.
        progress: Told how far each file is.
        sleep: Pauses between rounds over the mirrors.

    Raises:
        ProctorError: A file could not be had, or there is no room for it. What has arrived is kept and resumed.
    """
    if not missing(files, raw):
        return
    try:
        raw.mkdir(parents=True, exist_ok=True)
        with FileLock(raw / ".lock"):
            wanted = missing(files, raw)
            _check_room(wanted, raw)
            if source is not None:
                _copy_all(wanted, raw, source, progress)
            else:
                for file in wanted:
                    _download(file, raw, progress, sleep)
    except OSError as error:
        if error.errno in FULL_DISK:
            raise ProctorError(
                f"the disk of {raw} is full", "free some space and run the same command again; it will resume"
            ) from error
        raise ProctorError(f"the files cannot be put into {raw}: {error}", "see PROCTOR_CACHE") from error


def missing(files: Sequence[RemoteFile], raw: Path) -> list[RemoteFile]:
    """The files that are not at their place in `raw` with the right size and hash.

    A hash is computed once and then trusted as long as size and modification time stay as they were.
    """
    known = _load_verified(raw)
    found: dict[str, list[int | str]] = {}
    lacking = []
    for file in files:
        path = _place(file, raw)
        if not path.is_file() or path.stat().st_size != file.size:
            lacking.append(file)
            continue
        seen = _stamp(path)
        entry = known.get(file.path)
        sha256 = entry[2] if isinstance(entry, list) and entry[:2] == seen else sha256_of(path)
        found[file.path] = [*seen, sha256]
        if sha256 != file.sha256:
            lacking.append(file)
    if any(known.get(name) != entry for name, entry in found.items()):
        _save_verified(raw, known | found)
    return lacking


def sha256_of(path: Path) -> str:
    """The sha256 of a file's content, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _place(file: RemoteFile, raw: Path) -> Path:
    relative = PurePosixPath(file.path)
    if relative.is_absolute() or ".." in relative.parts or not relative.parts:
        raise ProctorError(f"the published file {file.path!r} has no place inside the raw folder", "mend the task")
    return raw / relative


def _part(file: RemoteFile, raw: Path) -> Path:
    place = _place(file, raw)
    return place.with_name(f"{place.name}.{file.sha256[:12]}.part")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _stamp(path: Path) -> list[int | str]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def _load_verified(raw: Path) -> dict[str, object]:
    try:
        value = json.loads((raw / VERIFIED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}  # only a record of work done: without it, the hashes are computed again
    return value if isinstance(value, dict) else {}


def _save_verified(raw: Path, entries: dict[str, object]) -> None:
    try:
        write_json(raw / VERIFIED, entries)
    except OSError:
        return  # a read-only or full cache is still usable; hashing again costs only time


def _check_room(files: Sequence[RemoteFile], raw: Path) -> None:
    needed = sum(max(0, file.size - _size(_part(file, raw))) for file in files)
    free = shutil.disk_usage(raw).free
    if needed > free:
        raise ProctorError(
            f"{raw} needs {needed / 1e6:,.1f} MB for the files and has {free / 1e6:,.1f} MB free",
            "free some space, or put the cache elsewhere with PROCTOR_CACHE",
        )


def _accept(file: RemoteFile, raw: Path) -> None:
    """Put a complete, checked part into its place, for good (synced before it is renamed)."""
    part, place = _part(file, raw), _place(file, raw)
    with part.open("rb") as stream:
        os.fsync(stream.fileno())
    os.replace(part, place)
    _save_verified(raw, _load_verified(raw) | {file.path: [*_stamp(place), file.sha256]})


# --- from a folder -----------------------------------------------------------------------------------------------


def _copy_all(files: Sequence[RemoteFile], raw: Path, source: Path, progress: Progress) -> None:
    """Copy what can be found, then say all that could not be at once."""
    if not source.exists():
        raise ProctorError(f"{source} does not exist", "give `--from` a folder that holds the files, or one file")
    by_name = _names_under(source)
    problems = [problem for file in files if (problem := _copy(file, raw, by_name, source, progress))]
    if problems:
        raise ProctorError(
            f"not every file could be taken from {source}:\n    " + "\n    ".join(problems),
            "put the published files there, unchanged and not unpacked, and run the same command again",
        )


def _names_under(source: Path) -> dict[str, list[Path]]:
    if source.is_file():
        return {source.name: [source]}
    found: dict[str, list[Path]] = {}
    for folder, subfolders, names in os.walk(source):
        subfolders.sort()
        for name in sorted(names):
            found.setdefault(name, []).append(Path(folder, name))
    return found


def _copy(file: RemoteFile, raw: Path, by_name: dict[str, list[Path]], source: Path, progress: Progress) -> str | None:
    """Copy the first file of the right name and content; otherwise say what was wrong."""
    # A browser saves a file under the last part of its address, which need not be the name that we keep it under.
    names = [PurePosixPath(file.path).name] + [PurePosixPath(unquote(urlsplit(url).path)).name for url in file.urls]
    candidates = [path for name in dict.fromkeys(names) for path in by_name.get(name, ()) if path.is_file()]
    if source.is_file():
        candidates = candidates or [source]
    if not candidates:
        return f"{file.path}: no file named {' or '.join(dict.fromkeys(names))} there (expected sha256 {file.sha256})"
    wrong = []
    for candidate in candidates:
        size = candidate.stat().st_size
        found = sha256_of(candidate) if size == file.size else None
        if found != file.sha256:
            found = found or sha256_of(candidate)
            wrong.append(f"{candidate} has {size:,} bytes, sha256 {found}")
            continue
        part = _part(file, raw)
        part.parent.mkdir(parents=True, exist_ok=True)
        _copy_bytes(candidate, part, file, progress)
        # The copy is what counts: the original may lie on a medium that reads differently twice.
        if sha256_of(part) == file.sha256:
            _accept(file, raw)
            return None
        part.unlink()
        wrong.append(f"{candidate} changed while it was copied")
    return f"{file.path}: expected {file.size:,} bytes, sha256 {file.sha256}; " + "; ".join(wrong)


def _copy_bytes(candidate: Path, part: Path, file: RemoteFile, progress: Progress) -> None:
    done = 0
    with candidate.open("rb") as stream, part.open("wb") as out:
        while block := stream.read(CHUNK):
            out.write(block)
            done += len(block)
            progress(file.path, done, file.size)


# --- from the network --------------------------------------------------------------------------------------------


def _download(file: RemoteFile, raw: Path, progress: Progress, sleep: Callable[[float], None]) -> None:
    part = _part(file, raw)
    part.parent.mkdir(parents=True, exist_ok=True)
    urls = list(file.urls)
    reasons: dict[str, str] = {}
    most = _size(part)  # bytes ever had: a transfer that gets further each time is never given up
    idle = 0
    while urls and idle < ROUNDS:
        if reasons:
            sleep(BACKOFF_S * 2 ** max(0, idle - 1))
        idle += 1
        for url in list(urls):
            try:
                _try(url, file, part, progress)
            except _Useless as reason:
                reasons[url] = str(reason)
                urls.remove(url)
            except _Interrupted as reason:
                reasons[url] = str(reason)
            else:
                _accept(file, raw)
                return
            if _size(part) > most:
                most, idle = _size(part), 0
    tried = "".join(f"\n    {url}: {reason}" for url, reason in reasons.items()) or " it has no public address"
    raise ProctorError(
        f"{file.path} ({file.size:,} bytes) could not be fetched:{tried}",
        f"run the same command again to resume, or get the file by other means (sha256 {file.sha256}) "
        "and run it with `--from DIR`",
    )


def _try(url: str, file: RemoteFile, part: Path, progress: Progress) -> None:
    """Complete the part from one address and check it; returns only if it is right."""
    resumed = _size(part) > 0
    _transfer(url, file, part, progress)
    found = sha256_of(part)
    if found == file.sha256:
        return
    part.unlink()
    reason = f"wrong content: sha256 {found}, expected {file.sha256}"
    # If the first bytes came from elsewhere, they may be at fault: this address deserves a clean try.
    raise _Interrupted(reason) if resumed else _Useless(reason)


def _transfer(url: str, file: RemoteFile, part: Path, progress: Progress) -> None:
    """Append to the part what is lacking, or start it again if the server cannot go on from the middle."""
    offset = _size(part)
    if offset > file.size:
        part.unlink()
        offset = 0
    if part.exists() and offset == file.size:
        return
    with _open(url, offset, part) as response:
        if response.status != 206:
            offset = 0
        elif not (response.headers.get("Content-Range") or "").startswith(f"bytes {offset}-"):
            part.unlink(missing_ok=True)
            raise _Interrupted(f"the server sent another range than asked for ({response.headers['Content-Range']})")
        announced = response.headers.get("Content-Length")
        if announced is not None and announced.isdigit() and offset + int(announced) != file.size:
            raise _Useless(f"the server's file has {offset + int(announced):,} bytes, expected {file.size:,}")
        progress(file.path, offset, file.size)
        with part.open("ab" if offset else "wb") as out:
            for block in _blocks(response):
                if offset + len(block) > file.size:
                    out.truncate(0)
                    raise _Useless(f"the server sends more than the expected {file.size:,} bytes")
                out.write(block)
                offset += len(block)
                progress(file.path, offset, file.size)
    if offset != file.size:
        raise _Interrupted(f"the transfer stopped at {offset:,} of {file.size:,} bytes")


def _open(url: str, offset: int, part: Path) -> http.client.HTTPResponse:
    if urlsplit(url).scheme not in ("http", "https"):
        raise _Useless("not an http or https address")
    request = Request(url, headers={"User-Agent": f"proctor/{__version__}", "Accept-Encoding": "identity"})
    if offset:
        request.add_header("Range", f"bytes={offset}-")
    try:
        response: http.client.HTTPResponse = urlopen(request, timeout=TIMEOUT_S)
    except HTTPError as error:
        error.close()
        if error.code == 416:
            part.unlink(missing_ok=True)
            raise _Interrupted("the server would not resume (HTTP 416)") from None
        reason = f"HTTP {error.code} {error.reason}"
        raise (_Interrupted if error.code >= 500 or error.code in TEMPORARY else _Useless)(reason) from None
    except URLError as error:
        raise _Interrupted(str(error.reason)) from None
    except (http.client.HTTPException, OSError) as error:
        raise _Interrupted(f"{type(error).__name__}: {error}") from None
    return response


def _blocks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """The body in blocks, each as soon as it is there, so that a broken transfer leaves all that had arrived.

    Network faults end as `_Interrupted`, so that they are not taken for faults of the disk.
    """
    while True:
        try:
            block = response.read1(CHUNK)
        except (http.client.HTTPException, OSError) as error:
            raise _Interrupted(f"{type(error).__name__}: {error}") from None
        if not block:
            return
        yield block
