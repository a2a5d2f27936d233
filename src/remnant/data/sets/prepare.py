"""Prepares datasets from their original files, which `fetch` downloads: several mirrors, resumed downloads, checksums."""

import hashlib
import http.client
import os
import shutil
import warnings
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from ..errors import DataError, MissingExtraError
from .array_formats import read_cifar10, read_cifar100, read_idx, read_svhn
from .image_formats import read_miniimagenet, read_notmnist, read_tiny_imagenet
from .originals import Originals
from .sources import Arrays, RemoteFile, source
from .store import check_arrays, data_root, load_dataset, prepared_path, write_prepared

Report = Callable[[str, int, int | None], None]  # file, bytes so far, bytes in all if known
Note = Callable[[str], None]

READERS: dict[str, Callable[[Originals], Arrays]] = {
    "mnist": read_idx,
    "fashion_mnist": read_idx,
    "cifar10": read_cifar10,
    "cifar100": read_cifar100,
    "svhn": read_svhn,
    "notmnist": read_notmnist,
    "miniimagenet": read_miniimagenet,
    "tiny_imagenet": read_tiny_imagenet,
}
CHUNK = 1 << 18
TIMEOUT = 30.0  # seconds without a byte


def add(name: str, path: str | PathLike[str]) -> Path:
    """Prepares a dataset, such as "mnist", from the folder or archive `path` that holds its original files.

    Returns:
        The file that was written. If the originals are missing, damaged or of another dataset, nothing is written.
    """
    arrays = read_originals(name, Path(path).expanduser())
    try:
        return write_prepared(name, arrays)
    except OSError as error:
        raise DataError(
            f"{prepared_path(name)} could not be written ({error.strerror or error}). "
            f"Make room in {data_root()}, or set REMNANT_DATA to another folder."
        ) from error


def read_originals(name: str, path: Path) -> Arrays:
    """The checked arrays of a dataset's original files."""
    entry = source(name)
    if not path.exists():
        raise DataError(f"{path} does not exist. '{name}' needs {entry.wanted}.")
    try:
        arrays = READERS[name](Originals(path, entry))
    except DataError:
        raise
    except Exception as error:  # libraries can raise nearly anything on damaged files
        problem = f"{path} is damaged or is not '{name}' ({type(error).__name__}: {error})"
        raise DataError(f"{problem}. Give {entry.wanted}.") from error
    check_arrays(entry, arrays, path)
    return arrays


def fetch(name: str, report: Report = lambda file, done, total: None, note: Note = warnings.warn) -> Path:
    """Downloads and prepares a dataset, unless it is ready. An interrupted download is resumed by the next call.

    Args:
        name: the dataset, such as "mnist".
        report: called with the file, the bytes so far, and the bytes in all if known.
        note: called with a sentence about each file whose SHA-256 nobody publishes.

    Returns:
        The prepared file.
    """
    entry = source(name)
    try:
        load_dataset(name)
        return prepared_path(name)
    except DataError:
        pass  # missing or damaged
    folder = data_root() / "downloads" / name
    for file in entry.files:
        if file.sha256 is None:
            note(
                f"Nobody publishes a SHA-256 of {file.name}, so only the size and content of the download are checked."
            )
        _download(name, file, folder, report)
    try:
        path = add(name, folder / entry.files[0].name if len(entry.files) == 1 else folder)
    except MissingExtraError:
        raise  # the files are good; installing the package is enough
    except DataError:
        for file in entry.files:
            if file.sha256 is None:  # nothing else has checked this file, so it may be the bad one
                (folder / file.name).unlink(missing_ok=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    return path


def _download(name: str, file: RemoteFile, folder: Path, report: Report) -> None:
    """Puts one complete file into `folder`, from the first mirror that delivers it."""
    target, part = folder / file.name, folder / f"{file.name}.part"
    if target.exists() and not _problem(target, file):
        return
    folder.mkdir(parents=True, exist_ok=True)
    reasons = []
    for url in file.urls:
        reason = _from_mirror(url, file, part, report)
        if not reason:
            os.replace(part, target)
            return
        reasons.append(f"{urlsplit(url).netloc}: {reason}")
    raise DataError(
        f"'{file.name}' of '{name}' could not be downloaded ({'; '.join(reasons)}). "
        f"Its usual address is {file.urls[0]}: put it in {folder} and run `remnant data fetch {name}` again, "
        f"or run `remnant data add {name} PATH` with {source(name).wanted}."
    )


def _from_mirror(url: str, file: RemoteFile, part: Path, report: Report) -> str:
    """Completes `part`. Returns why that failed, or an empty text. Wrong bytes are deleted, others stay for the next try."""
    resumed = part.exists()
    if failure := _transfer(url, file, part, report):
        return failure
    if problem := _problem(part, file):
        part.unlink()
        # The old beginning may be the wrong part, so start once more from nothing.
        return _from_mirror(url, file, part, report) if resumed else problem
    return ""


def _problem(path: Path, file: RemoteFile) -> str:
    """Says why a downloaded file is not the right one; empty if it is."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"{size:,} bytes instead of {file.size:,}"
    if file.sha256 is not None:
        with open(path, "rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if found != file.sha256:
            return f"wrong checksum, {found} instead of {file.sha256}"
    return ""


def _transfer(url: str, file: RemoteFile, part: Path, report: Report) -> str:
    """Appends the missing bytes of the file to `part`. Returns why that failed, or an empty text."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "remnant"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        with urlopen(Request(url, headers=headers), timeout=TIMEOUT) as response:
            # A server may ignore the range and send everything (200); then the file starts over.
            done = have if response.headers.get("Content-Range", "").startswith(f"bytes {have}-") else 0
            if response.status == 206 and done != have:
                return "it answered with another part of the file than asked for"
            length = response.headers.get("Content-Length", "")
            total = done + int(length) if length.isdigit() else file.size
            with open(part, "ab" if done else "wb") as out:
                report(file.name, done, total)
                while chunk := response.read(CHUNK):
                    done += out.write(chunk)
                    report(file.name, done, total)
    except HTTPError as error:
        error.close()
        # 416: nothing follows, so the file is complete, or another file.
        return "" if error.code == 416 and have else f"HTTP {error.code} {error.reason}"
    except (OSError, http.client.HTTPException) as error:
        inner = getattr(error, "reason", error)
        return getattr(inner, "strerror", None) or str(inner) or type(error).__name__
    return f"broke off after {done:,} of {total:,} bytes" if total is not None and done < total else ""
