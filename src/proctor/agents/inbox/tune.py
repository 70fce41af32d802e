"""Runs in the agent's box: tunes the numeric constants on top of a script within the time that is left.

    tune.py SCRIPT train|edit lower|higher SEED

`train`: each trial runs a changed copy of SCRIPT (which writes a checkpoint), then `score`. `edit`: each trial replaces
SCRIPT by a changed copy (which is itself the submission), then `score`. At the end the best trial is what lies in the
workspace, and is submitted. Constants are top-level lines `NAME = number`; each is searched within a factor of four
on a log scale; integers stay integers, powers of two and odd numbers stay such, and values in (0, 1) stay there.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import optuna

NUMBER = r"[0-9][0-9_]*(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?|1 << [0-9]+"
CONSTANT = re.compile(rf"^([A-Z][A-Z0-9_]*)([ ]*=[ ]*)({NUMBER})(?=[ ]*(?:#|$))", re.M)
SKIP = ("SEED", "LOOKBACK", "HORIZON", "CHANNELS", "VOCAB", "VOCAB_SIZE")  # what the task fixes
MARGIN = 1.25  # a trial is started only if this many times the longest trial so far still fits
RESERVE_S = 4.0


def tool(*words):
    """Run `score`, `clock` or `submit`; its JSON answer."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout)
    except ValueError:
        return {"status": "error", "message": done.stdout + done.stderr, "remaining_s": 0.0}


def constants(source):
    """{name: number} of what may be tuned."""
    found = {}
    for match in CONSTANT.finditer(source):
        text = match[3]
        value = 1 << int(text.split()[-1]) if "<<" in text else float(text) if re.search(r"[.e]", text) else int(text)
        if match[1] not in SKIP and value > 0:
            found[match[1]] = value
    return found


def is_power(value):
    """Powers of two keep the shapes that the script's author had in mind (heads divide widths)."""
    return isinstance(value, int) and value >= 4 and value & (value - 1) == 0


def is_odd(value):
    """Odd numbers stay odd: kernels have a middle. One is a count like any other."""
    return isinstance(value, int) and value >= 3 and value % 2 == 1


def encoded(value):
    """The value as Optuna's parameter: powers of two by exponent, odd numbers by half."""
    return value.bit_length() - 1 if is_power(value) else value // 2 if is_odd(value) else value


def propose(trial, name, value):
    if is_power(value):
        power = value.bit_length() - 1
        return 1 << trial.suggest_int(name, max(1, power - 6 if value > 4096 else power - 1), power + 1)
    if is_odd(value):
        return 1 + 2 * trial.suggest_int(name, max(1, value // 6), 3 * (value // 2), log=True)
    if isinstance(value, int):
        return trial.suggest_int(name, max(1, value // 3), value * 3, log=True)
    high = min(value * 4, 0.999) if value < 1 else value * 4
    return trial.suggest_float(name, value / 4, high, log=True)


def rewritten(source, values):
    return CONSTANT.sub(lambda m: f"{m[1]}{m[2]}{values[m[1]]!r}" if m[1] in values else m[0], source)


def main():
    script, mode, direction, seed = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    original = Path(script).read_text()
    start = constants(original)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=4)
    study = optuna.create_study(direction="minimize" if direction == "lower" else "maximize", sampler=sampler)
    study.enqueue_trial({k: encoded(v) for k, v in start.items()})
    print(f"tuning {len(start)} constants of {script}: {start}", flush=True)
    best, best_source, longest = None, original, 0.0
    while True:
        left = tool("clock").get("remaining_s") or 0.0
        if left < max(longest * MARGIN, 1.0) + RESERVE_S:
            break
        began = time.monotonic()
        trial = study.ask()
        values = {k: propose(trial, k, v) for k, v in start.items()}
        source = rewritten(original, values)
        answer = run_trial(script, mode, source, trial.number, values, left - RESERVE_S)
        longest = max(longest, time.monotonic() - began)
        score = answer.get("score")
        better = score is not None and (best is None or (score < best if direction == "lower" else score > best))
        print(f"trial {trial.number}: {score} {values} {answer.get('message', '')[:200]}", flush=True)
        if score is None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, score)
        if better:
            best, best_source = score, source
        if not start:
            break
    Path(script).write_text(best_source)
    print(f"best {best}", flush=True)
    tool("submit", "--note", f"best of {len(study.trials)} trials: {best}")


def run_trial(script, mode, source, number, values, limit_s):
    """One changed copy, run and scored; the score's answer."""
    note = json.dumps(values)
    if mode == "edit":
        Path(script).write_text(source)
        return tool("score", "--note", note)
    copy = f"run_{number}.py"
    Path(copy).write_text(source)
    try:
        done = subprocess.run(
            [sys.executable, copy], timeout=limit_s, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
    except subprocess.TimeoutExpired:
        return {"message": "out of time"}
    if done.returncode != 0:
        return {"message": done.stderr.decode(errors="replace")[-300:]}
    checkpoints = sorted(Path("checkpoints").glob("*.pt"), key=lambda p: p.stat().st_mtime)
    if not checkpoints:
        return {"message": "no checkpoint was written"}
    kept = checkpoints[-1].rename(f"checkpoints/trial_{number}.pt")
    os.utime(kept)
    return tool("score", str(kept), "--note", note)


if __name__ == "__main__":
    main()
