"""Shows examples in docstrings as code. griffe knows the section "Examples:" only."""

import re
from textwrap import indent
from typing import Any

from griffe import Extension, Object


class Examples(Extension):
    """Names the section while the site is built."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            text = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
            bare = re.compile(r"\n\n(>>> .*)\Z", re.DOTALL)  # an example without a section of its own
            obj.docstring.value = bare.sub(lambda found: "\n\nExamples:\n" + indent(found[1], "    "), text)
