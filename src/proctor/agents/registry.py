"""Finding agent adapters: the ones shipped here and those of plug-ins (entry-point group `proctor.agents`)."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from functools import cache
from importlib.metadata import entry_points

import proctor.agents
from proctor.agents.base import Agent
from proctor.errors import UsageError
from proctor.spec import AgentSpec


@cache
def _found() -> tuple[dict[str, Agent], dict[str, str]]:
    """Every adapter by name, and what is wrong with plug-ins that gave none: one must not stop the others."""
    found: dict[str, Agent] = {}
    broken: dict[str, str] = {}
    for info in pkgutil.iter_modules(proctor.agents.__path__):
        agent = getattr(importlib.import_module(f"proctor.agents.{info.name}"), "AGENT", None)
        if isinstance(agent, Agent):
            found[agent.name] = agent
    for point in entry_points(group="proctor.agents"):
        try:
            agent = point.load()
        except (ImportError, AttributeError) as error:
            broken[point.name] = f"the agent plug-in {point.name} ({point.value}) cannot be imported: {error}"
            continue
        if isinstance(agent, Agent):
            found.setdefault(agent.name, agent)
        else:
            broken[point.name] = f"the agent plug-in {point.name} ({point.value}) is not an Agent"
    return found, broken


def all_agents() -> dict[str, Agent]:
    """Every adapter by name. A module of this package that has an `AGENT` is one."""
    return _found()[0]


def broken_agents() -> dict[str, str]:
    """Plug-ins that should have given an adapter, and why they did not."""
    return _found()[1]


def get_agent(name: str) -> Agent:
    """An adapter by name."""
    agents = all_agents()
    if name in broken_agents():
        raise UsageError(broken_agents()[name], "mend or uninstall it")
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
