"""Splits, window counts, generators, and what the public folders hold."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from proctor.data.seeds import RELEASE_SEED
from proctor.errors import ProctorError
from proctor.spec import Protocol
from proctor.tasks.base import Array, Task
from proctor.tasks.onecard.forecasting import data as series_data
from proctor.tasks.onecard.forecasting.task import TASK as FORECASTING
from proctor.tasks.onecard.language_modeling import data as text_data
from proctor.tasks.onecard.language_modeling import grammar
from proctor.tasks.onecard.language_modeling.task import TASK as LANGUAGE_MODELING
from tests.tasks.onecard.support import DATA, contents, meta, prepared

RAW = {"forecasting": DATA / "etth1", "language_modeling": DATA / "tinyshakespeare"}
TASKS = pytest.mark.parametrize("task", [FORECASTING, LANGUAGE_MODELING], ids=lambda task: task.id)


def raw_folder(task: Task) -> Path:
    folder = RAW[task.id]
    if not all((folder / file.path).is_file() for file in task.files):
        pytest.skip(f"the published files of {task.id} are not in {folder}")
    return folder


def hidden_probe(task: Task, private: Path) -> bytes:
    """A piece of the hidden split that is long enough to be nowhere else."""
    hidden: Array = np.load(private / "hidden.npy")
    # Forecasting's private rows begin with the lookback, which is public: the probe is taken from the end.
    return hidden[-40:].tobytes() if task.id == "forecasting" else hidden[-100:].tobytes()


def test_etth1_has_the_standard_windows() -> None:
    series = series_data.read_etth1(raw_folder(FORECASTING) / "ETTh1.csv")
    counts = [len(series_data.windows(rows)[0]) for rows in (series.train, *map(series.with_lookback, ("val", "test")))]
    assert counts == [8209, 2785, 2785]
    train = series.train.astype(np.float64)
    np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(train.std(axis=0), 1, atol=1e-6)


def test_shakespeare_has_the_standard_split() -> None:
    text = text_data.read_shakespeare(raw_folder(LANGUAGE_MODELING) / "input.txt")
    assert len(text.characters) == 65
    assert (len(text.train) + len(text.dev), len(text.test)) == (1_003_854, 111_540)
    assert len(text.dev) == 55_770
    whole = (RAW["language_modeling"] / "input.txt").read_text()
    shown = "".join(text.characters[i] for i in np.concatenate([text.train, text.dev, text.test]))
    assert shown == whole


def test_another_csv_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "ETTh1.csv").write_text("date,a,b\n2016-07-01 00:00:00,1,2\n")
    with pytest.raises(ProctorError, match="has the columns date, a, b"):
        series_data.read_etth1(tmp_path / "ETTh1.csv")


def test_windows_are_what_slicing_gives() -> None:
    rows = np.arange(600 * 7, dtype=np.float32).reshape(600, 7)
    inputs, targets = series_data.windows(rows)
    assert inputs.shape == (600 - 336 - 96 + 1, 336, 7) and targets.shape == (169, 96, 7)
    for i in (0, 50, 168):
        np.testing.assert_array_equal(inputs[i], rows[i : i + 336])
        np.testing.assert_array_equal(targets[i], rows[i + 336 : i + 432])


def test_the_mini_series_depends_on_its_seed_alone() -> None:
    one, again, other = (series_data.generate(seed) for seed in (3, 3, 4))
    for name in ("train", "val", "test"):
        np.testing.assert_array_equal(getattr(one, name), getattr(again, name))
        assert not np.allclose(getattr(one, name), getattr(other, name))
    assert one.floor == again.floor != other.floor


def test_the_mini_series_has_the_planned_windows_and_room() -> None:
    series = series_data.generate(RELEASE_SEED)
    assert [len(series_data.windows(series.with_lookback(name))[0]) for name in ("val", "test")] == [745, 745]
    assert series.floor is not None and 0.02 < series.floor < 0.3
    # The delays are there to be found: some channel's past explains another's present better than that one's own past.
    lag = 60
    past, now = series.train[:-lag], series.train[lag:]
    correlation = np.corrcoef(past.T, now.T)[:7, 7:]
    assert np.max(np.abs(correlation - np.diag(np.diag(correlation)))) > np.max(np.abs(np.diag(correlation)))


def test_the_mini_text_depends_on_its_seed_alone() -> None:
    one, again, other = (grammar.write_text(seed, (3000,)) for seed in (3, 3, 4))
    assert one == again
    assert one[0][0] != other[0][0]


def test_the_mini_text_fits_its_vocabulary() -> None:
    text = text_data.generate(RELEASE_SEED)
    assert len(text.characters) == len(set(text.characters)) <= 65
    for ids, least in zip((text.train, text.dev, text.test), text_data.MINI_SIZES, strict=True):
        assert ids.dtype == np.uint16
        assert len(ids) >= least
        assert int(ids.max()) < len(text.characters)


def test_the_entropy_of_the_mini_text_is_that_of_its_choices() -> None:
    """An independent reading of a text: parse it, and add up the probability of everything in it."""
    seed = 11
    language = grammar.make_language(np.random.default_rng([seed, 0x1A]))
    (text, claimed), *_ = grammar.write_text(seed, (20_000,))
    bits = sum(passage_bits(language, passage) for passage in text.split("\n\n") if passage)
    assert bits / len(text) == pytest.approx(claimed, rel=1e-9)


def passage_bits(language: grammar.Language, passage: str) -> float:
    first, second, *turns, last = passage.split("\n")
    topic = [word.forms[0] for word in language.topics].index(first.removeprefix("@ "))
    cast = second.split(" ")
    assert last == "= " + " ".join(cast)
    names = len(grammar.SYLLABLES) ** grammar.NAME_SYLLABLES
    p = [1 / grammar.TOPICS, 1 / 3] + [1 / (names - i) for i in range(len(cast))]
    speaker = -1
    for turn in turns:
        name, _, said = turn.partition(": ")
        weights = [0.0 if i == speaker else 4.0 if i == (speaker + 1) % len(cast) else 1.0 for i in range(len(cast))]
        weights = weights if speaker >= 0 else [1.0] * len(cast)
        speaker = cast.index(name)
        p.append(weights[speaker] / sum(weights))
        sentences = said.removesuffix(".").split(". ")
        p += [0.4] * (len(sentences) - 1) + [0.6]
        for sentence in sentences:
            p += sentence_odds(language, topic, cast, sentence)
    p += [0.88] * (len(turns) - 1) + [0.12]  # whether the passage ends after a turn
    return -sum(math.log2(x) for x in p)


def sentence_odds(language: grammar.Language, topic: int, cast: list[str], sentence: str) -> list[float]:
    """The probability of every choice in a sentence: phrase verb phrase [preposition phrase] [, adverb]."""
    main, comma, adverb = sentence.partition(", ")
    odds = [0.25 / len(language.adverbs)] if comma else [0.75]
    assert not comma or any(adverb == word.forms[0] for word in language.adverbs)
    words = main.split(" ")

    def phrase() -> int:
        if words[0] in cast:
            odds.append(0.35 * Counter(cast)[words.pop(0)] / len(cast))
            return 0
        odds.append(0.65)
        kinds = [i for i, word in enumerate(language.adjectives) if words[0] in word.forms]
        odds.append(0.4 if kinds else 0.6)
        if kinds:
            odds.append(language.adjective_weights[topic, kinds[0]] / language.adjective_weights[topic].sum())
            form = language.adjectives[kinds[0]].forms.index(words.pop(0))
        noun = [word.forms[0] for word in language.nouns].index(words.pop(0))
        odds.append(language.noun_weights[topic, noun] / language.noun_weights[topic].sum())
        agreed = language.nouns[noun].noun_class
        assert not kinds or form == agreed
        return agreed

    agreed = phrase()
    verb = [word.forms[agreed] for word in language.verbs].index(words.pop(0))
    odds.append(language.verb_weights[topic, verb] / language.verb_weights[topic].sum())
    phrase()
    if words:
        assert words.pop(0) in {word.forms[0] for word in language.prepositions}
        odds.append(0.35 / len(language.prepositions))
        phrase()
    else:
        odds.append(0.65)
    assert not words
    return odds


@TASKS
@pytest.mark.parametrize("protocol", list(Protocol))
@pytest.mark.parametrize("tier", ["mini", "full"])
def test_only_published_shows_the_hidden_split(task: Task, protocol: Protocol, tier: str, tmp_path: Path) -> None:
    raw = raw_folder(task) if tier == "full" else None
    folder = prepared(task, tier, protocol, tmp_path, raw)
    probe = hidden_probe(task, folder / "private")
    assert probe in contents(folder / "private")
    assert (probe in contents(folder / "public")) == (protocol is Protocol.PUBLISHED)


@TASKS
def test_published_scores_the_hidden_split_and_sealed_another(task: Task, tmp_path: Path) -> None:
    published = prepared(task, "mini", Protocol.PUBLISHED, tmp_path / "p") / "private"
    sealed = prepared(task, "mini", Protocol.SEALED, tmp_path / "s") / "private"
    assert (published / "visible.npy").read_bytes() == (published / "hidden.npy").read_bytes()
    assert (sealed / "visible.npy").read_bytes() != (sealed / "hidden.npy").read_bytes()
    assert (sealed / "hidden.npy").read_bytes() == (published / "hidden.npy").read_bytes()


@TASKS
def test_the_public_folder_tells_no_seed_and_no_floor(task: Task, tmp_path: Path) -> None:
    folder = prepared(task, "mini", Protocol.SEALED, tmp_path, seed=987_654_321)
    assert set(meta(folder / "public")) <= {"visible", "characters"}
    assert b"987654321" not in contents(folder / "public")
    assert meta(folder / "private")["floor"] > 0


@TASKS
def test_program_and_files_are_whole_for_every_tier_and_protocol(task: Task) -> None:
    for tier in task.tiers:
        assert set(task.locked) <= set(task.start_files(tier))
        assert "train.py" in task.reference_files(tier)
        for protocol in Protocol:
            text = task.program(tier, protocol, 120.0)
            assert "2 minutes" in text and protocol.value in text
            assert "{budget}" not in text and "{counts}" not in text and "{tier}" not in text
