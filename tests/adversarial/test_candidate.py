"""Submissions that attack their scoring, in real boxes. Each ends as `invalid` in plain words, or as an honest score
where the trick does nothing; never as a fault of ours, and the next scoring works."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from proctor.spec import ScoreEntry
from tests.box.support import needs_box
from tests.support.stand import Stand, stand
from tests.support.toy.task import TASK, Toy

pytestmark = needs_box
HONEST = "import numpy as np\ndef predict(x): return np.float32(2.5) * x\n"


class Hasty(Toy):
    """The toy task with limits that a hanging submission meets soon."""

    policy = TASK.policy.__class__(timeout_s=3.0)
    folder = TASK.folder


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with stand(tmp_path_factory.mktemp("stand"), Hasty(), warm=1, budget_s=600.0) as made:
        made.service._pool.fill(wait=True)
        yield made


@pytest.fixture(scope="module")
def honest_score(bench: Stand) -> float:
    entry = bench.solve(HONEST)
    assert entry.status == "scored" and entry.score is not None
    return entry.score


@pytest.fixture
def honest(bench: Stand, honest_score: float) -> Iterator[float]:
    """The honest score; after the test the scorer must still give it."""
    yield honest_score
    after = bench.solve(HONEST)
    assert (after.status, after.score) == ("scored", honest_score)


def refused(entry: ScoreEntry, *words: str) -> None:
    """The entry is `invalid`, says one of these words, and shows no traceback of ours."""
    assert entry.status == "invalid", entry
    assert entry.score is None
    assert any(word in entry.message for word in words), entry.message
    assert "proctor" not in entry.message and "driver.py" not in entry.message, entry.message
    assert len(entry.message) <= 8000


WRONG_ANSWERS = {
    "NaN": ("return np.full_like(x, np.nan)", "64 values that are NaN or infinite"),
    "infinite": ("y = 2 * x; y[3] = np.inf; return y", "1 values that are NaN or infinite"),
    "wrong shape": ("return np.zeros((64, 2), 'float32')", "shape (64, 2)"),
    "too few rows": ("return x[:63]", "only 63 of 64 rows"),
    "no dimension": ("return np.float32(1)", "shape ()"),
    "double": ("return x.astype('float64')", "float64"),
    "integers": ("return x.astype('int64')", "int64"),
    "complex": ("return x.astype('complex64')", "complex64"),
    "big endian": ("return x.astype('>f4')", ">f4"),
    "structured": ("return np.zeros(64, [('a', 'f4')])", "not accepted"),
    "objects": ("return np.array([object()] * 64)", "object"),
    "text": ("return np.array(['1.0'] * 64)", "<U3"),
    "nothing": ("return None", "object"),
    "empty": ("return np.zeros(0, 'float32')", "only 0 of 64 rows"),
    "huge": ("return np.zeros(1 << 28, 'float32')", "larger than what was asked for"),
    "masked": ("return np.ma.masked_all(64, 'float32').filled(np.nan)", "NaN"),
    "huge text": ("raise ValueError('x' * 50_000_000)", "ValueError: xxx"),
    "surrogates in an error": (r"raise ValueError('\ud800 \udcff')", "ValueError"),
    "error without text": (
        "class E(Exception):\n        def __str__(self): raise RuntimeError\n    raise E",
        "whose text cannot be had",
    ),
    "endless recursion": ("return predict(x)", "RecursionError"),
    "base exception": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "exit": ("sys.exit(0)", "sys.exit"),
    "hard exit": ("os._exit(0)", "exit code 0"),
    "signal": ("os.kill(os.getpid(), 9)", "signal 9"),
    "segmentation fault": ("import ctypes; ctypes.string_at(0)", "signal 11"),
    "abort": ("os.abort()", "signal 6"),
    "closed line": ("os.close(SOCK); os._exit(3)", "exit code 3"),
}


@pytest.mark.parametrize("name", WRONG_ANSWERS)
def test_wrong_answers_are_invalid_in_plain_words(bench: Stand, honest: float, name: str) -> None:
    body, word = WRONG_ANSWERS[name]
    source = f"import os, sys\nimport numpy as np\nSOCK = int(sys.argv[1])\ndef predict(x):\n    {body}\n"
    refused(bench.solve(source), word)


FORGERIES = {
    "garbage": "S.sendall(b'\\xff' * 4096)",
    "a short frame": "S.sendall(b'\\0\\0')",
    "a header of 2**31 bytes": "S.sendall(struct.pack('>I', 1 << 31) + b'{}')",
    "a header that is not JSON": "frame(b'nonsense')",
    "a header that is a list": "frame(b'[1, 2, 3]')",
    "deep nesting": "frame(b'[' * 100_000 + b']' * 100_000)",
    "an infinite dimension": "array_of('[Infinity]')",
    "dimensions beside a zero": "array_of(f'[0, {1 << 60}, {1 << 60}]')",
    "a negative dimension": "array_of('[-64]')",
    "an array of 2**31 bytes": "array_of(f'[{1 << 29}]')",
    "no arrays": """frame(b'{"ok": true, "meta": {"score": 0.0}, "arrays": []}')""",
    "a score of its own": """frame(b'{"ok": true, "score": 0.0, "status": "scored", "arrays": []}')""",
    "descriptors": "rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0] * 200)); "
    "S.sendmsg([b'\\0\\0\\0\\5nope!'], [rights])",
    "a pickle": "frame(pickle.dumps(print))",
}
FORGER = """
import array, os, pickle, socket, struct, sys
S = socket.socket(fileno=os.dup(int(sys.argv[1])))
def frame(raw):
    S.sendall(struct.pack('>I', len(raw)) + raw)
def array_of(shape):
    frame(b'{"ok": true, "meta": {}, "arrays": [{"name": "y", "dtype": "float32", "shape": ' + shape.encode() + b'}]}')
def predict(x):
    {body}
    os._exit(0)
"""


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_frames_are_refused(bench: Stand, honest: float, name: str) -> None:
    entry = bench.solve(FORGER.replace("{body}", FORGERIES[name]))
    assert entry.status == "invalid" and entry.score is None, entry
    assert "failed on our side" not in entry.message


def test_an_answer_sent_before_the_question_is_refused(bench: Stand, honest: float) -> None:
    source = """
import json, os, struct, sys, time
def frame(header, raw=b''):
    head = json.dumps(header).encode()
    return struct.pack('>I', len(head)) + head + raw
# An answer to `load`, and with it one to the `predict` that has not been asked.
loaded = frame({'ok': True, 'meta': {}, 'arrays': []})
early = frame({'ok': True, 'meta': {}, 'arrays': [{'name': 'y', 'dtype': 'float32', 'shape': [64]}]}, bytes(256))
os.write(int(sys.argv[1]), loaded + early)
time.sleep(60)
"""
    refused(bench.solve(source), "before it was asked")


def test_hanging_is_ended_by_the_limit_of_the_call_or_of_the_task(bench: Stand, honest: float) -> None:
    refused(bench.solve("import time\ntime.sleep(600)"), "took longer than the 3 s")


def test_closing_the_line_without_dying_is_noticed(bench: Stand, honest: float) -> None:
    entry = bench.solve("import os, sys, time\nos.close(int(sys.argv[1]))\ntime.sleep(600)")
    refused(entry, "closed its line", "took longer")


def test_a_flood_of_output_is_harmless(bench: Stand, honest_score: float) -> None:
    source = "import os\nfor _ in range(1600): os.write(1, b'x' * 65536); os.write(2, b'y' * 65536)\n" + HONEST
    entry = bench.solve(source)
    assert (entry.status, entry.score) == ("scored", honest_score)


def test_forked_children_threads_and_exit_hooks_die_with_the_box(bench: Stand, honest_score: float) -> None:
    source = """
import atexit, os, threading, time
for _ in range(8):
    if os.fork() == 0:
        os.setsid()
        while True: time.sleep(1)
threading.Thread(target=lambda: time.sleep(3600)).start()
atexit.register(lambda: open('/workspace/result.json', 'w').write('{"score": 0}'))
"""
    entry = bench.solve(source + HONEST)
    assert (entry.status, entry.score) == ("scored", honest_score)


def test_a_fork_bomb_meets_the_limit_of_processes(bench: Stand, honest: float) -> None:
    source = "import os, time\nwhile True:\n    try: os.fork()\n    except OSError: time.sleep(0.01)\n"
    refused(bench.solve(source), "processes", "took longer")


def test_exhausted_memory_is_named(bench: Stand, honest: float) -> None:
    source = "blocks = []\nwhile True: blocks.append(bytearray(64 << 20))\n"
    refused(bench.solve(source), "memory", "MemoryError")


NO_EFFECT = {
    "patching numpy": "np.abs = np.mean = lambda *a, **k: np.float64(0)",
    "patching the wire": "import wire; wire.MAX_HEADER = 1 << 40; wire.DTYPES |= {'object', 'complex64'}",
    "patching the clock": "import time; time.monotonic = time.perf_counter = time.time = lambda: 0.0",
    "patching the driver": "import __main__; __main__.tell = lambda e: 'score 0'",
    "a trace function": "import sys; sys.settrace(lambda *a: None); sys.setprofile(lambda *a: None)",
    "leaving its stdout shut": "import os; os.close(0); os.close(1); os.close(2)",
    "another folder": "import os; os.chdir('/tmp')",
    "a signal handler": "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "a result file": "open('/tmp/result.json', 'w').write('{\"score\": 0.0}')",
}


@pytest.mark.parametrize("name", NO_EFFECT)
def test_tricks_within_its_own_process_change_no_score(bench: Stand, honest_score: float, name: str) -> None:
    entry = bench.solve(f"import numpy as np\n{NO_EFFECT[name]}\n{HONEST}")
    assert (entry.status, entry.score) == ("scored", honest_score)


def test_arrays_that_claim_to_equal_anything_are_taken_as_their_bytes(bench: Stand, honest_score: float) -> None:
    source = """
import numpy as np
class Liar(np.ndarray):
    def __eq__(self, other): return True
    def __sub__(self, other): return self * 0
    def all(self): return True
    def astype(self, *a, **k): return self
class Fake:
    shape, dtype, nbytes, ndim = (64,), np.dtype('float32'), 256, 1
    def __array__(self, dtype=None, copy=None): return 2.5 * X
def predict(x):
    global X
    X = x
    return (2.5 * x).view(Liar) if LIE else Fake()
"""
    for lie in (True, False):
        entry = bench.solve(f"LIE = {lie}\n{source}")
        assert (entry.status, entry.score) == ("scored", honest_score)


LOOKING = """
import gc, json, os, socket, sys
import numpy as np

found = []
# Everything that this process holds: arrays in frames and in the collector's lists, environment, command line.
def predict(x):
    frame, arrays = sys._getframe(), []
    while frame:
        arrays += [v for v in frame.f_locals.values() if isinstance(v, np.ndarray)]
        frame = frame.f_back
    for held in gc.get_objects():  # plain arrays are not tracked themselves, what holds them is
        values = held.values() if type(held) is dict else held if type(held) in (list, tuple, set) else ()
        arrays += [v for v in list(values) if isinstance(v, np.ndarray)]
    for array in arrays:
        if array.shape == x.shape and array is not x and abs(array - x).max() > 1e-3:
            found.append('an array beside the input')
    text = json.dumps(dict(os.environ)) + ' '.join(sys.argv)
    for word in ('private', 'seed', 'CANARY', 'hidden'):
        if word in text:
            found.append(word)
    for top in ('/', '/data', '/workspace', '/opt', '/tmp', '/home', '/run', '/var', '/dev/shm'):
        for folder, _, names in os.walk(top) if top != '/' else [('/', [], os.listdir('/'))]:
            found.extend(f'{folder}/{n}' for n in names if n in ('hidden.npz', 'visible.npz', 'secret.txt', 'run.json'))
    for family, place in ((socket.AF_INET, ('1.1.1.1', 80)), (socket.AF_UNIX, '/run/proctor/broker.sock')):
        with socket.socket(family) as s:
            s.settimeout(0.2)
            try: s.connect(place)
            except OSError: continue
            found.append(f'a connection to {place}')
    if found:
        raise ValueError(f'FOUND {found}')
    return np.float32(2.5) * x
"""


def test_there_is_nothing_to_find_in_a_candidates_box(bench: Stand, honest_score: float) -> None:
    entry = bench.solve(LOOKING)
    assert (entry.status, entry.score) == ("scored", honest_score), entry.message


def test_the_look_for_answers_would_find_them(bench: Stand) -> None:
    """The control of the test above: with the answers in its process, the same code reports them."""
    entry = bench.solve(LOOKING.replace("found = []", "found = []\nKEEP = np.arange(64, dtype='float32')"))
    assert "FOUND ['an array beside the input'" in entry.message


WRITES = {
    "its submission": "open('solve.py', 'a').write('x')",
    "a new file": "open('/workspace/new', 'w')",
    "a mode": "os.chmod('solve.py', 0o777)",
    "its data": "open('/data/train.npz', 'ab')",
    "the driver": "open('/opt/proctor/lib/driver.py', 'a')",
    "the runtime": "open(np.__file__, 'a')",
    "a remount": "if ctypes.CDLL(None).mount(None, b'/workspace', None, 32 | 4096, None): raise OSError",
}


@pytest.mark.parametrize("name", WRITES)
def test_what_the_box_shows_cannot_be_written(bench: Stand, honest_score: float, name: str) -> None:
    attempt = f"try:\n    {WRITES[name]}\nexcept OSError: pass\nelse: raise ValueError('WRITTEN')\n"
    entry = bench.solve(f"import ctypes, os\nimport numpy as np\n{attempt}{HONEST}")
    assert (entry.status, entry.score) == ("scored", honest_score), entry.message


def test_the_kept_snapshot_is_untouched_by_its_candidate(bench: Stand, honest: float) -> None:
    entry = bench.solve(
        "import os\nfor n in os.listdir('.'):\n    try: os.truncate(n, 0)\n    except OSError: pass\n" + HONEST
    )
    assert entry.artefact is not None
    kept = bench.root / "snapshots" / entry.artefact / "files" / "solve.py"
    assert kept.read_text().endswith(HONEST)


@pytest.mark.parametrize("name", ["numpy.py", "json.py", "torch.py", "wire.py", "candidate.py", "socket.py"])
def test_modules_beside_the_submission_do_not_shadow_the_drivers(bench: Stand, honest_score: float, name: str) -> None:
    bench.submit({"solve.py": HONEST, name: "raise SystemExit('shadowed')\n"})
    entry = bench.service.score("agent")
    assert (entry.status, entry.score) == ("scored", honest_score), entry.message


def test_startup_hooks_in_the_workspace_are_not_run(bench: Stand, honest_score: float) -> None:
    hook = "raise SystemExit('hooked')\n"
    files = dict.fromkeys(("sitecustomize.py", "usercustomize.py", "conftest.py", "__init__.py"), hook)
    bench.submit({"solve.py": HONEST, "evil.pth": "import os; os._exit(7)\n", **files})
    entry = bench.service.score("agent")
    assert (entry.status, entry.score) == ("scored", honest_score), entry.message


def test_planted_results_are_ignored(bench: Stand, honest_score: float) -> None:
    planted = json.dumps({"score": 0.0, "valid": True, "raw_score": 0.0, "status": "scored"})
    names = ("result.json", "scores.jsonl", "reward.txt", "reward.json", "run.json", "events.jsonl")
    bench.submit({"solve.py": HONEST, **dict.fromkeys(names, planted)})
    entry = bench.service.score("agent")
    assert (entry.status, entry.score) == ("scored", honest_score)


def test_each_candidate_is_a_fresh_box(bench: Stand, honest_score: float) -> None:
    """What one scoring leaves in memory or in /tmp, the next one does not find."""
    source = """
import os
import numpy as np
places = ['/tmp/memo', '/dev/shm/memo', '/home/agent/memo']
if any(map(os.path.exists, places)): raise ValueError('MEMORY')
for place in places: open(place, 'w').write('seen')
"""
    for _ in range(2):
        entry = bench.solve(source + HONEST)
        assert (entry.status, entry.score) == ("scored", honest_score), entry.message
