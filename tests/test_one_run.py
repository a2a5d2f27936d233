"""How much code one run passes through. A stranger who follows it from the command to the files must not get lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer")

# Counts the functions of the package that are called by `remnant run`, without imports, lambdas and comprehensions.
COUNT = """
import json, re, sys, threading
import remnant
import remnant.__main__
from pathlib import Path

home, called = str(Path(remnant.__file__).parent), set()

def importing(frame):
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith("<frozen importlib"):
            return True
        if code.co_name == "<module>" and code.co_filename.startswith(home):
            return True
        frame = frame.f_back
    return False

def count(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(home) and not re.search(r"<\\w+>$", code.co_qualname):
        if not importing(frame):
            called.add((code.co_filename[len(home) + 1 :], code.co_qualname))

sys.argv = ["remnant", *sys.argv[1:]]
threading.setprofile(count)
sys.setprofile(count)
try:
    remnant.__main__.main()
except SystemExit as end:
    assert not end.code, end.code
sys.setprofile(None)
print(json.dumps(sorted(called)))
"""


def test_one_run_passes_through_few_functions_and_files(tmp_path: Path) -> None:
    command = ["run", "permuted-digits", "gpm", "--device", "cpu", "--runs", str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", COUNT, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    called = [tuple(each) for each in json.loads(done.stdout.splitlines()[-1])]
    assert 200 < len(called) <= 300, sorted(called)
    assert len({file for file, _ in called}) <= 50
    assert ("memory/subspaces/subspace.py", "Subspace.grow") in called  # Eq. 5 and 9
