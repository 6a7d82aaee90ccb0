"""For the site: examples in docstrings are code."""

import re

from griffe import Extension, Object

# From a prompt to the next empty line, as doctest has it.
_EXAMPLE = re.compile(r"^( *)>>> .*?(?=^ *$|\Z)", re.M | re.S)


class Examples(Extension):
    """Puts every example of a docstring into a fence."""

    def on_instance(self, *, obj: Object, **_) -> None:
        """Change the docstring of anything that is documented."""
        if obj.docstring is not None:
            text = obj.docstring.value.rstrip() + "\n"
            obj.docstring.value = _EXAMPLE.sub(r"\1```python\n\g<0>\1```\n", text)
