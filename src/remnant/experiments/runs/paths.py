"""Where a run stands among all: benchmark/method/digest/seed, under names any file system takes."""

import re
from hashlib import blake2b
from pathlib import Path

PLAIN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9_-])?")


def place(benchmark: str, method: str, digest: str, seed: int) -> Path:
    return Path(folder_name(benchmark), folder_name(method), folder_name(digest), f"seed{seed}")


def folder_name(name: str) -> str:
    """The name itself where it is plain; of `dir/own.py:stream` its end and, as two may share that, a few hex digits."""
    if PLAIN.fullmatch(name):
        return name
    end = re.sub(r"[^A-Za-z0-9._-]+", "-", re.split(r"[/\\]", name)[-1]).strip("-._")[:40]
    mark = blake2b(name.encode(errors="surrogatepass"), digest_size=4).hexdigest()
    return f"{end}-{mark}" if end else mark
