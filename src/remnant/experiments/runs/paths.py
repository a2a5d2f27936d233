"""The path of a run, `<benchmark>/<method>/<digest>/seed<k>`, with names that every file system accepts."""

import re
from hashlib import blake2b
from pathlib import Path

PLAIN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9_-])?")


def run_path(benchmark: str, method: str, digest: str, seed: int) -> Path:
    """The path of a run below the folder of all runs."""
    return Path(folder_name(benchmark), folder_name(method), folder_name(digest), f"seed{seed}")


def folder_name(name: str) -> str:
    """The name itself if it is plain. `dir/own.py:stream` becomes `own.py-stream-` and a hash of the whole name."""
    if PLAIN.fullmatch(name):
        return name
    end = re.sub(r"[^A-Za-z0-9._-]+", "-", re.split(r"[/\\]", name)[-1]).strip("-._")[:40]
    mark = blake2b(name.encode(errors="surrogatepass"), digest_size=4).hexdigest()
    return f"{end}-{mark}" if end else mark
