"""Proctor: exams in machine-learning research for coding agents and people."""

__version__ = "0.1.0"
