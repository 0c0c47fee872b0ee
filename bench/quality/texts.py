"""The texts that a model reads: files of the user's choice, or the language reference that comes with Python.

A text is named `python-docs@20000` or `notes.txt@0`: a source, and the token at which the stretch begins.
"""

import os
import pydoc_data.topics
from dataclasses import dataclass

# The topics are about 113 000 tokens to SmolLM2's tokenizer; these stretches of 4096 are far apart.
USUAL = ("python-docs@20000", "python-docs@43000", "python-docs@66000", "python-docs@90000")


@dataclass(frozen=True)
class Text:
    name: str
    source: str
    offset: int


def parse_text(named):
    """`python-docs@OFFSET`, `FILE@OFFSET`, or `FILE` for its beginning."""
    source, at, offset = named.rpartition("@")
    if not at:
        source, offset = named, "0"
    if not offset.isdigit():
        raise ValueError(f"text {named}: expected a number of tokens after @, got {offset!r}")
    if source != "python-docs" and not os.path.isfile(source):
        raise ValueError(f"text {named}: expected python-docs or a file, got {source!r}, which is none")
    return Text(f"{os.path.basename(source)}@{int(offset)}", source, int(offset))


def read_source(source):
    if source == "python-docs":
        topics = pydoc_data.topics.topics
        return "\n\n".join(topics[name] for name in sorted(topics))
    with open(source, encoding="utf-8") as file:
        return file.read()


def stretch(tokens, text, length):
    """The tokens of a text, out of those of its source."""
    end = text.offset + length
    if end > len(tokens):
        raise ValueError(f"text {text.name}: expected at least {end} tokens in {text.source}, got {len(tokens)}")
    return tokens[text.offset : end]
