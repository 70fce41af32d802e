"""The text to model: TinyShakespeare as published (full), or one written from a seed (mini). Host side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from proctor.tasks.base import Array, RemoteFile
from proctor.tasks.onecard.language_modeling import grammar

_COMMIT = "370cbcd448eb7daf32f21a6be560b70e0b33c4e3"
SHAKESPEARE = RemoteFile(
    path="input.txt",
    urls=(
        f"https://raw.githubusercontent.com/karpathy/char-rnn/{_COMMIT}/data/tinyshakespeare/input.txt",
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    ),
    size=1_115_394,
    sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    licence="Shakespeare's text is in the public domain; the file is from an MIT-licensed repository",
)
SHAKESPEARE_DEV = 55_770
"""Bytes of the development split of the full tier: half as long as the hidden one."""
MINI_SIZES = (300_000, 24_000, 36_000)
"""Least bytes of train, development and test text of the mini tier; each ends with a whole passage."""


@dataclass(frozen=True)
class Text:
    """Three texts as uint16 ids, and the characters that the ids stand for.

    `floor` is what the best possible model pays for `test` in bits per byte (known for generated text only).
    """

    characters: str
    train: Array
    dev: Array
    test: Array
    floor: float | None = None


def encode(text: str, characters: str) -> Array:
    """Ids of an ASCII text; every character must be among `characters`."""
    ids = np.full(128, len(characters), np.uint16)
    ids[[ord(c) for c in characters]] = np.arange(len(characters))
    out: Array = ids[np.frombuffer(text.encode("ascii"), np.uint8)]
    if out.size and int(out.max()) >= len(characters):
        raise ValueError("the text holds a character that is not in the vocabulary")
    return out


def read_shakespeare(path: Path) -> Text:
    """The published text: the last tenth is the test text, SHAKESPEARE_DEV bytes before it are the development text."""
    text = path.read_bytes().decode("ascii")
    characters = "".join(sorted(set(text)))
    ids = encode(text, characters)
    border = int(len(ids) * 0.9)
    return Text(characters, ids[: border - SHAKESPEARE_DEV], ids[border - SHAKESPEARE_DEV : border], ids[border:])


def generate(seed: int) -> Text:
    """A text written from a seed; see `grammar`."""
    written = grammar.write_text(seed, MINI_SIZES)
    train, dev, test = (encode(text, grammar.ALPHABET) for text, _ in written)
    return Text(grammar.ALPHABET, train, dev, test, floor=written[-1][1])
