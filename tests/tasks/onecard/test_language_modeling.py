"""Scoring language models: the metric, the causality audit, honest models that must pass, and models that must not."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from proctor.errors import InvalidSubmission
from proctor.jsonio import write_json
from proctor.tasks.base import Array, Evaluation
from proctor.tasks.onecard.language_modeling import blocks, data, grammar
from proctor.tasks.onecard.language_modeling.task import AUDIT_CUTS, TASK, block_size
from tests.tasks.onecard.support import evaluate, write_submission

V = len(grammar.ALPHABET)

BIGRAM = """
class Model(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.table = nn.Embedding(vocabulary, vocabulary)

    def forward(self, idx):
        logits = self.table(idx)
        following = F.pad(idx[:, 1:], (0, 1))
        return logits

def build_model(config):
    return Model(config["vocabulary"])
"""


@pytest.fixture(scope="module")
def ids() -> Array:
    (text, _), *_ = grammar.write_text(5, (8000,))
    return data.encode(text, grammar.ALPHABET)


@pytest.fixture
def private(tmp_path: Path, ids: Array) -> Path:
    folder = tmp_path / "private"
    folder.mkdir()
    np.save(folder / "hidden.npy", ids)
    write_json(folder / "meta.json", {"characters": grammar.ALPHABET})
    return folder


def bigram_logits(ids: Array) -> Array:
    """Log-frequencies of pairs, add-one smoothed, float32 (V, V)."""
    counts = np.ones((V, V))
    np.add.at(counts, (ids[:-1], ids[1:]), 1)
    logits: Array = np.log(counts / counts.sum(axis=1, keepdims=True)).astype(np.float32)
    return logits


def score(tmp_path: Path, private: Path, ids: Array, source: str, size: object = 32) -> Evaluation:
    def fill(model: torch.nn.Module) -> None:
        table = model.get_submodule("table")
        assert isinstance(table, torch.nn.Embedding)
        table.weight.data.copy_(torch.from_numpy(bigram_logits(ids)))

    config = {"vocabulary": V, "block_size": size}
    return evaluate(TASK, write_submission(tmp_path / "workspace", source, config, fill), private)


def voided(result: Evaluation) -> None:
    assert result.score is None
    assert [(finding.rule, finding.severity) for finding in result.findings] == [("causality", "void")]
    assert "attention mask" in result.message
    assert "dropout" in result.message


def test_bits_per_byte_are_those_of_a_plain_loop(tmp_path: Path, private: Path, ids: Array) -> None:
    result = score(tmp_path, private, ids, BIGRAM)
    logits = bigram_logits(ids).astype(float)
    nats = 0.0
    for now, following in pairwise(ids):
        row = logits[now]
        nats += math.log(sum(math.exp(v) for v in row)) - row[following]
    assert result.findings == ()
    assert result.score == pytest.approx(nats / (len(ids) - 1) / math.log(2), rel=1e-9)
    assert result.details["bytes"] == len(ids) - 1 and result.details["audited"] == AUDIT_CUTS


HONEST = {
    "bfloat16 weights": ("return self.table.bfloat16()(idx)", 32),
    "noise of the size of rounding errors, by batch size": ("return logits * (1 + 1e-3 * (len(idx) % 7 - 3))", 32),
    "BatchNorm in evaluation mode": ("return self.norm(logits.transpose(1, 2)).transpose(1, 2)", 512),
}


@pytest.mark.parametrize("what", HONEST)
def test_honest_models_are_scored(tmp_path: Path, private: Path, ids: Array, what: str) -> None:
    body, size = HONEST[what]
    source = BIGRAM.replace("return logits", body).replace(
        "self.table = ", f"self.norm = nn.BatchNorm1d({V})\n        self.table = "
    )
    result = score(tmp_path, private, ids, source, size)
    assert result.findings == ()
    assert result.score is not None and 2.0 < result.score < 4.5


CHEATS = {
    "peeks at every next token": "logits = logits + 3 * F.one_hot(following, logits.shape[-1])",
    "peeks at 5 % of the positions": """before = 3 * F.pad(idx[:, :-1], (1, 0)) + F.pad(idx[:, :-2], (2, 0))
        where = (7 * idx + before) % 20 == 0
        logits = logits + 9.0 * where[..., None] * F.one_hot(following, logits.shape[-1])""",
    "nudges every position a little": "logits = logits + 0.05 * F.one_hot(following, logits.shape[-1])",
    "attends without a mask": """h = F.one_hot(idx, logits.shape[-1]).float()
        logits = logits + 4 * F.scaled_dot_product_attention(h, h, h)""",
    "learns from earlier blocks": """self.seen = getattr(self, "seen", torch.ones(logits.shape[-1], logits.shape[-1]))
        logits = logits + self.seen.log()[idx]
        self.seen.index_put_((idx[:, :-1].flatten(), idx[:, 1:].flatten()), torch.ones(()), accumulate=True)""",
    "keeps dropout on": "logits = F.dropout(logits, 0.1)",
}


@pytest.mark.parametrize("what", CHEATS)
def test_models_that_see_more_than_they_may_are_voided(tmp_path: Path, private: Path, ids: Array, what: str) -> None:
    source = BIGRAM.replace("return logits", f"{CHEATS[what]}\n        return logits")
    result = score(tmp_path, private, ids, source)
    voided(result)
    # A small nudge is within the tolerance everywhere: its mean gives it away.
    assert (result.details["audit_worst"] < 1.0) == what.startswith("nudges")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return logits.log_softmax(-1).exp().log() - 1 / (idx[..., None] - idx[..., None])", "NaN or infinite"),
        ("return logits[..., :-1]", rf"shape \(64, 32, {V - 1}\); \(64, 32, {V}\) was expected"),
        ("return logits, None", "returned a tuple; it must return one tensor"),
    ],
)
def test_unusable_outputs_are_invalid(tmp_path: Path, private: Path, ids: Array, body: str, said: str) -> None:
    with pytest.raises(InvalidSubmission, match=said):
        score(tmp_path, private, ids, BIGRAM.replace("return logits", body))


def test_a_block_size_that_is_no_number_is_invalid(tmp_path: Path, private: Path, ids: Array) -> None:
    with pytest.raises(InvalidSubmission, match=r"config\['block_size'\] must be a whole number, not 'long'"):
        score(tmp_path, private, ids, BIGRAM, "long")


@pytest.mark.parametrize(("asked", "given"), [(1, 16), (16, 16), (300, 300), (10**9, 1024)])
def test_block_sizes_are_kept_within_limits(asked: int, given: int) -> None:
    assert block_size(asked) == given


@pytest.mark.parametrize("size", [16, 33, 100])
def test_every_byte_but_the_first_is_a_target_once(size: int) -> None:
    ids = np.arange(1, 301, dtype=np.uint16)
    cut = blocks.cut(ids, size)
    assert cut.inputs.shape == cut.targets.shape == (-(-299 // size), size)
    assert cut.targets[cut.targets >= 0].tolist() == ids[1:].tolist()
    known = cut.targets >= 0
    assert (cut.inputs[known] + 1 == cut.targets[known]).all()
    assert (cut.inputs[~known] == 0).all()


@pytest.mark.parametrize(("length", "size"), [(111_540, 256), (111_540, 1024), (8000, 32), (2000, 512)])
def test_the_audit_shows_nothing_before_it_is_due(length: int, size: int) -> None:
    """Of an audited block, only what is up to its cut is shown until the answer is in, in whatever other place."""
    rng = np.random.default_rng(3)
    ids = np.arange(length)  # every token is unlike all others, so that it tells where it comes from
    cut = blocks.cut(ids, size)
    shown: set[int] = set()
    pairs = set()
    for part in blocks.audit_rounds(cut, AUDIT_CUTS, rng):
        shown |= set(part.inputs.flatten().tolist())
        for row, at, inputs in zip(part.rows, part.cuts, part.inputs, strict=True):
            np.testing.assert_array_equal(inputs[: at + 1], cut.inputs[row, : at + 1])
            if at + 1 < size:
                assert not set(inputs[at + 1 :].tolist()) & set(cut.inputs[row, at + 1 :].tolist())
            assert int(cut.targets[row, at]) not in shown, "the answer that is due has been shown"
            pairs.add((int(row), int(at)))
    assert len(pairs) == AUDIT_CUTS


@pytest.mark.parametrize(
    ("share", "size", "by_block", "least"),
    [(0.02, 256, False, 0.9), (0.02, 1024, False, 0.9), (0.02, 256, True, 0.9), (0.05, 1024, True, 0.9)],
)
def test_a_peek_at_a_few_positions_is_caught(share: float, size: int, by_block: bool, least: float) -> None:
    """How often a secret set of peeked-at positions holds an audited one, over 400 drawings."""
    rng = np.random.default_rng(8)
    cut = blocks.cut(rng.integers(0, 65, 111_540), size)
    caught = 0
    for _ in range(400):
        peeks = rng.random((len(cut), 1 if by_block else size)) < share
        if by_block:
            peeks = np.zeros((len(cut), 1), bool)
            peeks[rng.choice(len(cut), max(1, round(share * len(cut))), replace=False)] = True
        peeks = np.broadcast_to(peeks, (len(cut), size))
        caught += any(peeks[part.rows, part.cuts].any() for part in blocks.audit_rounds(cut, AUDIT_CUTS, rng))
    assert caught / 400 > least
