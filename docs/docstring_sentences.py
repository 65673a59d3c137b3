"""Let the reference show docstrings as they are meant: what follows the colon of a parameter is a sentence, no type."""

import re

import griffe

NAMED = re.compile(r"^(\S[^:\n]*?) : (.*)$", re.MULTILINE)


class Sentences(griffe.Extension):
    """Puts what follows a parameter's name on the line below it, where numpydoc has descriptions."""

    def on_object(self, *, obj, **_):
        if obj.docstring is not None:
            obj.docstring.value = NAMED.sub(r"\1\n    \2", obj.docstring.value)
