"""One spelling for each word: optimizer and optimization as in torch, British spelling elsewhere (normalise)."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/*.md"), *ROOT.glob("src/**/*.py")]
OTHER = re.compile(r"\b(optimis\w*|normaliz(?!e\()\w*)", re.IGNORECASE)
MISSPELT = '"optim", "optimiser"'  # a setting that users may type, for which a hint gives the right name


def test_words_have_one_spelling() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{number}": words
        for path in FILES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if (words := OTHER.findall(line.replace(MISSPELT, "")))
    }
    assert not found
