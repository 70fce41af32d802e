"""Finding agent adapters: the ones shipped here and those of plug-ins (entry-point group `proctor.agents`)."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from functools import cache
from importlib.metadata import entry_points

import proctor.agents
from proctor.agents.base import Agent
from proctor.errors import ProctorError, UsageError
from proctor.spec import AgentSpec


@cache
def all_agents() -> dict[str, Agent]:
    """Every adapter by name. A module of this package that has an `AGENT` is one."""
    found: dict[str, Agent] = {}
    for info in pkgutil.iter_modules(proctor.agents.__path__):
        agent = getattr(importlib.import_module(f"proctor.agents.{info.name}"), "AGENT", None)
        if isinstance(agent, Agent):
            found[agent.name] = agent
    for point in entry_points(group="proctor.agents"):
        agent = point.load()
        if not isinstance(agent, Agent):
            raise ProctorError(f"the agent plug-in {point.name} ({point.value}) is not an Agent")
        found.setdefault(agent.name, agent)
    return found


def get_agent(name: str) -> Agent:
    """An adapter by name."""
    agents = all_agents()
    if name not in agents:
        near = difflib.get_close_matches(name, list(agents), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"there is no agent {name!r}", f"{hint}`proctor agents` lists them all")
    return agents[name]


def parse_agent(text: str) -> AgentSpec:
    """`NAME` or `NAME:ARGUMENT` as a checked specification."""
    name, colon, argument = text.partition(":")
    agent = get_agent(name.strip())
    given = argument if colon else None
    agent.check(given)
    why = agent.missing()
    if why:
        raise UsageError(f"the agent {agent.name} cannot be used here: {why}")
    return AgentSpec(name=agent.name, argument=given, version=agent.version())
