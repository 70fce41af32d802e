"""Scoring forecasts: the metric, honest models that must pass, and models that must not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from proctor.errors import InvalidSubmission
from proctor.tasks.base import Array, Evaluation
from proctor.tasks.onecard.forecasting import data
from proctor.tasks.onecard.forecasting.task import TASK
from tests.tasks.onecard.support import evaluate, write_submission

ROWS = 336 + 96 + 120
"""Gives 121 windows, of which 31 are audited."""

LINEAR = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(336, 96)

    def forward(self, x):
        level = x[:, -24:].mean(1, keepdim=True)
        return self.map((x - level).transpose(1, 2)).transpose(1, 2) + level

def build_model(config):
    return Model()
"""


@pytest.fixture
def private(tmp_path: Path) -> Path:
    folder = tmp_path / "private"
    folder.mkdir()
    np.save(folder / "hidden.npy", data.generate(5).with_lookback("test")[:ROWS])
    return folder


def score(tmp_path: Path, private: Path, source: str) -> Evaluation:
    torch.manual_seed(1)
    return evaluate(TASK, write_submission(tmp_path / "workspace", source), private)


def voided(result: Evaluation) -> str:
    """The message of an evaluation that must have been voided for a leak."""
    assert result.score is None
    assert [(finding.rule, finding.severity) for finding in result.findings] == [("future_leak", "void")]
    assert "dropout" in result.message, "the innocent explanation is part of the message"
    return result.message


def brute_force(private: Path, forecast: Array) -> float:
    """Mean squared error of a forecast (96, 7) that is the same for all windows, by three plain loops."""
    rows = np.load(private / "hidden.npy").astype(float)
    errors: list[float] = []
    for start in range(len(rows) - 336 - 96 + 1):
        for step in range(96):
            for channel in range(7):
                errors.append(float(rows[start + 336 + step, channel] - forecast[step, channel]) ** 2)
    return sum(errors) / len(errors)


def test_a_constant_forecast_has_the_error_of_three_plain_loops(tmp_path: Path, private: Path) -> None:
    source = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.forecast = nn.Parameter(torch.arange(96 * 7).view(96, 7) / 500)

    def forward(self, x):
        return self.forecast.expand(len(x), 96, 7)

def build_model(config):
    return Model()
"""
    result = score(tmp_path, private, source)
    assert result.findings == ()
    forecast = np.arange(96 * 7, dtype=np.float32).reshape(96, 7) / 500
    assert result.score == pytest.approx(brute_force(private, forecast), rel=1e-6)
    assert result.details["windows"] == 121 and result.details["audited"] == 31


MAP = "self.map((x - level).transpose(1, 2))"
HONEST = {
    "bfloat16 weights": "self.map.bfloat16()((x - level).transpose(1, 2).bfloat16())",
    "noise of the size of rounding errors, by batch size": f"({MAP} * (1 + 1e-3 * (len(x) % 7 - 3)))",
    "BatchNorm in evaluation mode": f"self.norm({MAP})",
}


@pytest.mark.parametrize("what", HONEST)
def test_honest_models_are_scored(tmp_path: Path, private: Path, what: str) -> None:
    source = LINEAR.replace(MAP, HONEST[what]).replace(
        "self.map = nn", "self.norm = nn.BatchNorm1d(7)\n        self.map = nn"
    )
    result = score(tmp_path, private, source)
    assert result.findings == ()
    assert result.score is not None and 0.1 < result.score < 10


def test_a_model_that_remembers_windows_is_voided(tmp_path: Path, private: Path) -> None:
    source = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))
        self.after = {}

    def forward(self, x):
        rows = x.numpy()
        for window in rows:
            for now, following in zip(window[:-1], window[1:]):
                self.after[now.tobytes()] = following
        out = torch.empty(len(x), 96, 7)
        for b, window in enumerate(rows):
            row = window[-1]
            for step in range(96):
                row = self.after.get(row.tobytes(), row)
                out[b, step] = torch.from_numpy(row)
        return out + self.bias

def build_model(config):
    return Model()
"""
    said = voided(score(tmp_path, private, source))
    assert "scored outputs are better than the audited ones" in said


def test_a_slight_pull_towards_the_answer_is_found_by_its_gain(tmp_path: Path, private: Path) -> None:
    """3 % of the way to what other windows of the batch show: within the tolerance everywhere, and still found."""
    source = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))
        self.after = {}

    def forward(self, x):
        rows = x.numpy()
        for window in rows:
            for now, following in zip(window[:-1], window[1:]):
                self.after[now.tobytes()] = following
        out = torch.zeros(len(x), 96, 7)
        for b, window in enumerate(rows):
            row = window[-1]
            for step in range(96):
                row = self.after.get(row.tobytes())
                if row is None:
                    break
                out[b, step] = 0.03 * torch.from_numpy(row)
        return out + self.bias

def build_model(config):
    return Model()
"""
    result = score(tmp_path, private, source)
    voided(result)
    assert result.details["audit_worst"] < 1.0


def test_dropout_that_stays_on_is_voided(tmp_path: Path, private: Path) -> None:
    source = LINEAR.replace("return self.map((x - level)", "return self.map(F.dropout(x - level, 0.2)")
    voided(score(tmp_path, private, source))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return y / 0.0 * 0.0", "NaN or infinite"),
        ("return y[:, :95]", r"shape \(121, 95, 7\); \(121, 96, 7\) was expected"),
        ("return y[:-3]", r"only 118 of 121 rows"),
        ("return y.long()", "must return floating-point numbers"),
    ],
)
def test_unusable_outputs_are_invalid(tmp_path: Path, private: Path, body: str, said: str) -> None:
    source = LINEAR.replace("return self.map(", "y = self.map(").replace("+ level\n", f"+ level\n        {body}\n")
    with pytest.raises(InvalidSubmission, match=said):
        score(tmp_path, private, source)


def test_a_checkpoint_that_cannot_be_loaded_says_what_to_mend(tmp_path: Path, private: Path) -> None:
    workspace = write_submission(tmp_path / "workspace", LINEAR)
    (workspace / "model.py").write_text("def build():\n    pass\n")
    with pytest.raises(InvalidSubmission, match=r"model\.py has no function build_model\(config\)") as caught:
        evaluate(TASK, workspace, private)
    assert "candidate.py" not in str(caught.value), "the message is about the submission's files, not ours"
