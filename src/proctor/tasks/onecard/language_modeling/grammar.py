"""A source of text with a known entropy, for the mini tier. Host side.

The seed makes up a language: words from syllables, three noun classes that adjectives and verbs agree with, topics
that prefer some words. The source then writes passages such as

    @ kemu
    Nadobi Sukeva Toremi
    Sukeva: lo dapemi kuvo rasen tu Toremi.
    Toremi: ...
    = Nadobi Sukeva Toremi

A passage names its topic and its speakers (names that it coins) in its first two lines, and repeats the names in its
last. So there is something to find at every range: spelling, word frequencies, agreement within a sentence, whose
turn it is, the topic, and names that a model has to copy from hundreds of characters back.

Every choice can be read off the text, and all words of a slot are different, so that text and choices determine each
other. The information content of a text is therefore the sum over its choices of -log2 p, exactly; per byte, it is
what the best possible model of unlimited context pays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from proctor.tasks.base import Array

CONSONANTS = "bdfgklmnprstvz"
VOWELS = "aeiou"
SYLLABLES = tuple(c + v for c in CONSONANTS for v in VOWELS)
CLASSES = 3
TOPICS = 8
NAME_SYLLABLES = 3
ALPHABET = "\n .,:=@" + "".join(sorted(CONSONANTS.upper() + CONSONANTS + VOWELS))
"""Every character that can occur, in the order of their ids."""


class Choices:
    """Draws, and adds up the information in them (bits)."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self.bits = 0.0

    def pick(self, weights: Array) -> int:
        """An index, with probability proportional to its weight."""
        edges = np.cumsum(weights)
        i = int(np.searchsorted(edges, self._rng.random() * edges[-1], side="right"))
        i = min(i, len(weights) - 1)
        self.bits -= float(np.log2(weights[i] / edges[-1]))
        return i

    def coin(self, p: float) -> bool:
        """True with probability `p`."""
        return self.pick(np.array([1 - p, p])) == 1

    def name(self, taken: list[str]) -> str:
        """A coined name that is not taken yet; all such names have the same probability."""
        count = len(SYLLABLES)
        while True:
            drawn = self._rng.integers(count, size=NAME_SYLLABLES)
            name = "".join(SYLLABLES[i] for i in drawn).capitalize()
            if name not in taken:
                self.bits += float(np.log2(count**NAME_SYLLABLES - len(taken)))
                return name


@dataclass(frozen=True)
class Word:
    """A word in its forms: one for each noun class, or the same in all."""

    forms: tuple[str, ...]
    noun_class: int = 0


@dataclass(frozen=True)
class Language:
    """What a seed makes up; `*_weights[topic]` are the word frequencies under a topic."""

    nouns: tuple[Word, ...]
    adjectives: tuple[Word, ...]
    verbs: tuple[Word, ...]
    adverbs: tuple[Word, ...]
    prepositions: tuple[Word, ...]
    topics: tuple[Word, ...]
    noun_weights: Array
    verb_weights: Array
    adjective_weights: Array


def make_language(rng: np.random.Generator) -> Language:
    """Make up the words, their classes and their frequencies."""
    taken: set[str] = set()

    def stem(low: int, high: int) -> str:
        while True:
            count = int(rng.integers(low, high + 1))
            word = "".join(SYLLABLES[int(i)] for i in rng.integers(len(SYLLABLES), size=count))
            if word not in taken:
                taken.add(word)
                return word

    def fixed(count: int, low: int, high: int) -> tuple[Word, ...]:
        return tuple(Word((stem(low, high),) * CLASSES) for _ in range(count))

    def inflected(count: int, endings: tuple[str, ...]) -> tuple[Word, ...]:
        return tuple(Word(tuple(base + e for e in endings)) for base in (stem(2, 3) for _ in range(count)))

    # Endings close a syllable, which no stem does, so that an inflected word is no other word.
    nouns = tuple(Word((stem(2, 3),) * CLASSES, int(rng.integers(CLASSES))) for _ in range(60))
    adjectives = inflected(24, ("n", "s", "r"))
    verbs = inflected(36, ("l", "t", "k"))
    return Language(
        nouns=nouns,
        adjectives=adjectives,
        verbs=verbs,
        adverbs=fixed(12, 2, 2),
        prepositions=fixed(6, 1, 1),
        topics=fixed(TOPICS, 2, 2),
        noun_weights=_frequencies(rng, len(nouns), 1.2),
        verb_weights=_frequencies(rng, len(verbs), 1.1),
        adjective_weights=_frequencies(rng, len(adjectives), 1.1),
    )


def _frequencies(rng: np.random.Generator, count: int, exponent: float) -> Array:
    """Zipf frequencies (TOPICS, count), in an order that differs from topic to topic."""
    zipf = 1.0 / np.arange(1, count + 1) ** exponent
    return np.stack([zipf[rng.permutation(count)] for _ in range(TOPICS)])


class Writer:
    """Writes passages of a language and knows what they cost."""

    def __init__(self, language: Language, rng: np.random.Generator) -> None:
        self.language = language
        self.choices = Choices(rng)

    def passages(self, least_bytes: int) -> tuple[str, float]:
        """Whole passages, at least `least_bytes` of them; the text and its bits per byte."""
        before = self.choices.bits
        parts: list[str] = []
        size = 0
        while size < least_bytes:
            parts.append(self.passage())
            size += len(parts[-1])
        return "".join(parts), (self.choices.bits - before) / size

    def passage(self) -> str:
        choices, language = self.choices, self.language
        topic = choices.pick(np.ones(TOPICS))
        cast: list[str] = []
        for _ in range(2 + choices.pick(np.ones(3))):
            cast.append(choices.name(cast))
        lines = [f"@ {language.topics[topic].forms[0]}", " ".join(cast)]
        speaker = -1
        while True:
            # Anyone but the last speaker, the next in the list most often.
            weights = np.ones(len(cast))
            if speaker >= 0:
                weights[speaker] = 0.0
                weights[(speaker + 1) % len(cast)] = 4.0
            speaker = choices.pick(weights)
            sentences = [self._sentence(topic, cast)]
            while choices.coin(0.4):
                sentences.append(self._sentence(topic, cast))
            lines.append(f"{cast[speaker]}: {' '.join(sentences)}")
            if choices.coin(0.12):
                break
        lines.append(f"= {' '.join(cast)}")
        return "\n".join(lines) + "\n\n"

    def _sentence(self, topic: int, cast: list[str]) -> str:
        language, choices = self.language, self.choices
        subject, noun_class = self._phrase(topic, cast)
        verb = language.verbs[choices.pick(language.verb_weights[topic])].forms[noun_class]
        words = [*subject, verb, *self._phrase(topic, cast)[0]]
        if choices.coin(0.35):
            preposition = language.prepositions[choices.pick(np.ones(len(language.prepositions)))].forms[0]
            words += [preposition, *self._phrase(topic, cast)[0]]
        if choices.coin(0.25):
            words[-1] += ","
            words.append(language.adverbs[choices.pick(np.ones(len(language.adverbs)))].forms[0])
        return " ".join(words) + "."

    def _phrase(self, topic: int, cast: list[str]) -> tuple[list[str], int]:
        """A name (of class 0), or a noun with up to one adjective that agrees with it; and its class."""
        language, choices = self.language, self.choices
        if choices.coin(0.35):
            return [cast[choices.pick(np.ones(len(cast)))]], 0
        noun = language.nouns[choices.pick(language.noun_weights[topic])]
        if not choices.coin(0.4):
            return [noun.forms[0]], noun.noun_class
        adjective = language.adjectives[choices.pick(language.adjective_weights[topic])]
        return [adjective.forms[noun.noun_class], noun.forms[0]], noun.noun_class


def write_text(seed: int, sizes: tuple[int, ...]) -> list[tuple[str, float]]:
    """One text for each of `sizes` (least bytes), all in the language of `seed`; with the bits per byte of each."""
    language = make_language(np.random.default_rng([seed, 0x1A]))
    writer = Writer(language, np.random.default_rng([seed, 0x7E]))
    return [writer.passages(size) for size in sizes]
