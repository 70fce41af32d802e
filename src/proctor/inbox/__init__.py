"""What is shown inside boxes: `bin/` to the agent, `lib/` to the candidate. Standard library and numpy only.

These folders, and nothing else of Proctor, are bound into a box. `lib/wire.py` is used on both sides.
"""

from pathlib import Path

BIN = Path(__file__).resolve().parent / "bin"
LIB = Path(__file__).resolve().parent / "lib"
