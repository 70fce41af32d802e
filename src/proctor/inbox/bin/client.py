"""The agent's tools: `score`, `score-log`, `clock`, `submit`. Standard library only; prints one JSON object.

    score [TARGET] [--note TEXT]   freeze and score the submission (the newest one, or TARGET)
    score-log                      every scoring so far
    clock                          seconds used and left
    submit [--note TEXT]           end the run; what is in /workspace now is the submission

Exit codes: 0 done, 2 wrong usage, 3 the submission is invalid, 4 the scorer could not do it.
"""

import json
import os
import socket
import sys


def ask(request):
    path = os.environ.get("PROCTOR_SOCKET", "/run/proctor/broker.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        folder = os.open(os.path.dirname(path), os.O_PATH)  # a socket address is short, a path may be long
        connection.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
        connection.sendall(json.dumps(request).encode() + b"\n")
        data = b""
        while part := connection.recv(65536):
            data += part
    if not data.endswith(b"\n"):
        raise ConnectionError("it closed the line without an answer")
    return json.loads(data)


def main(op, arguments):
    request = {"op": op}
    rest = list(arguments)
    if {"-h", "--help"} & set(rest):
        print(__doc__)
        return 0
    while rest:
        word = rest.pop(0)
        if word == "--note" and rest and op in ("score", "submit"):
            request["note"] = rest.pop(0)
        elif op == "score" and not word.startswith("-") and "target" not in request:
            request["target"] = word
        else:
            print(f"{op}: unexpected {word!r}\n{__doc__}", file=sys.stderr)
            return 2
    try:
        answer = ask(request)
    except (OSError, ValueError) as error:
        answer = {"status": "error", "score": None, "message": f"the scorer does not answer: {error}"}
        answer.update(elapsed_s=None, remaining_s=None)
    print(json.dumps(answer), flush=True)
    return {"scored": 0, "hidden": 0, "ok": 0, "invalid": 3}.get(answer.get("status"), 4)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
