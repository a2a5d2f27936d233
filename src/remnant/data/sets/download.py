"""Downloads a set's original files: several mirrors, resumed where they broke off, checked, then converted."""

import hashlib
import http.client
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from ..errors import DataError, MissingExtraError
from .prepare import add
from .sources import RemoteFile, source
from .store import data_root, load_dataset, prepared_path

Report = Callable[[str, int, int | None], None]  # file, bytes so far, bytes in all where known

CHUNK = 1 << 18
TIMEOUT = 30.0  # seconds without a byte


class _BrokenError(Exception):
    """A mirror did not deliver; the reason is for the person, the next mirror for us."""


def _quiet(file: str, done: int, total: int | None) -> None:
    """Reports to nobody."""


def fetch(name: str, report: Report = _quiet) -> Path:
    """Downloads and prepares set `name`, unless it is ready. Interrupted, it goes on where it stopped next time;
    failing, it leaves no NAME.npz.
    """
    entry = source(name)
    try:
        load_dataset(name)
        return prepared_path(name)
    except DataError:  # missing, or damaged: to be made anew
        pass
    folder = data_root() / "downloads" / name
    for file in entry.files:
        download(name, file, folder, report)
    whole = folder / entry.files[0].name if len(entry.files) == 1 else folder
    try:
        path = add(name, whole)
    except MissingExtraError:
        raise  # install it and go on: the files are good
    except DataError:
        for file in entry.files:
            if file.md5 is None:  # nothing but the conversion vouches for it
                (folder / file.name).unlink(missing_ok=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    return path


def download(name: str, file: RemoteFile, folder: Path, report: Report = _quiet) -> Path:
    """One file into `folder`, whole and checked, from the first mirror that delivers it."""
    target, part = folder / file.name, folder / f"{file.name}.part"
    if target.exists() and not wrong_with(target, file):
        return target
    folder.mkdir(parents=True, exist_ok=True)
    reasons = []
    for url in file.urls:
        try:
            _from_mirror(url, file, part, report)
        except _BrokenError as error:
            reasons.append(f"{urlsplit(url).netloc}: {error}")
            continue
        os.replace(part, target)
        return target
    wanted = source(name).wanted
    raise DataError(
        f"'{file.name}' of '{name}' could not be downloaded ({'; '.join(reasons)}). "
        f"Its usual address is {file.urls[0]}: put it in {folder} and run `remnant data fetch {name}` again, "
        f"or run `remnant data add {name} PATH` with {wanted}."
    )


def _from_mirror(url: str, file: RemoteFile, part: Path, report: Report) -> None:
    """`part` complete and right, or _BrokenError. What a broken connection delivered stays, for the next try to go on from."""
    resumed = part.exists()
    _transfer(url, file, part, report)
    problem = wrong_with(part, file)
    if problem and resumed:  # the old beginning may be to blame: once more, from nothing
        part.unlink()
        _transfer(url, file, part, report)
        problem = wrong_with(part, file)
    if problem:
        part.unlink()
        raise _BrokenError(problem)


def wrong_with(path: Path, file: RemoteFile) -> str:
    """What is wrong with a downloaded file, or nothing."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"{size:,} bytes instead of {file.size:,}"
    if file.md5 is not None:
        with open(path, "rb") as content:
            found = hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if found != file.md5:
            return f"wrong checksum, {found} instead of {file.md5}"
    return ""


def _transfer(url: str, file: RemoteFile, part: Path, report: Report) -> None:
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "remnant"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response = urlopen(Request(url, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code == 416 and have:  # nothing after what we have: it is whole, or not this file
            return
        raise _BrokenError(f"HTTP {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenError(_reason(error)) from error
    with response:
        # A server may ignore the range (200): then it sends everything, and so do we start over.
        start = have if response.headers.get("Content-Range", "").startswith(f"bytes {have}-") else 0
        if response.status == 206 and start != have:
            raise _BrokenError("it answered with another part of the file than asked for")
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isdigit() else file.size
        done = start
        with open(part, "ab" if start else "wb") as out:
            report(file.name, done, total)
            while True:
                try:
                    chunk = response.read(CHUNK)
                except (OSError, http.client.HTTPException) as error:
                    raise _BrokenError(f"broke off after {done:,} bytes, {_reason(error)}") from error
                if not chunk:
                    break
                out.write(chunk)
                done += len(chunk)
                report(file.name, done, total)
            out.flush()
            os.fsync(out.fileno())
    if total is not None and done < total:
        raise _BrokenError(f"broke off after {done:,} of {total:,} bytes")


def _reason(error: Exception) -> str:
    inner = getattr(error, "reason", error)
    return getattr(inner, "strerror", None) or str(inner) or type(error).__name__
