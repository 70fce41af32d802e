import importlib.util
import json
import os
import sys

import numpy as np

STATE = {}


def load(meta, arrays, fds):
    sys.path.insert(0, os.getcwd())
    if meta["target"].endswith(".py"):
        spec = importlib.util.spec_from_file_location("solve", meta["target"])
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        STATE["predict"] = module.predict
    else:
        with open(meta["target"]) as stream:
            slope = json.load(stream)["slope"]
        STATE["predict"] = lambda x: np.float32(slope) * x
    return {}, {}


def predict(meta, arrays, fds):
    return {}, {"y": STATE["predict"](arrays["x"])}


OPS = {"load": load, "predict": predict}
