"""`proctor worker RUN_DIR`: one run in one process, from its specification to its result.

prepare -> box -> agent <-> score broker -> end -> seal -> result. Boxes die with this process; whatever happens, the
folder says how far it came.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import FrameType

from proctor.agents.base import Launch, Sitting
from proctor.agents.registry import get_agent
from proctor.box.base import BoxKind, BoxSpec
from proctor.box.registry import get_kind
from proctor.box.runtime import default_python, runtime_of
from proctor.box.tree import descendants
from proctor.clock import BudgetClock, Clock, SystemClock
from proctor.data.assets import Assets, prepare_assets
from proctor.errors import InfrastructureError, ProctorError, UsageError
from proctor.events import EventLog
from proctor.gpu import Lease, UtilisationSampler, acquire, device_nodes, drain, visible_env
from proctor.hardware import hardware, versions
from proctor.jsonio import write_json
from proctor.run.folder import RunFolder
from proctor.run.prompt import standard_prompt
from proctor.run.result import Facts, build_result
from proctor.run.seal import Sealed, Sealer
from proctor.run.supervise import DiskWatch, SilentSnapshots, Supervisor
from proctor.run.workspace import Room, agent_box, check_gpu, hidden_paths, lay_out
from proctor.scoring.broker import Broker
from proctor.scoring.pool import CandidatePool, CandidateSetup
from proctor.scoring.scorelog import ScoreLog, counting
from proctor.scoring.service import FAULTS, ScoringService
from proctor.scoring.snapshot import Snapshots, inodes_under
from proctor.spec import Ended, Finding, Protocol, Result, RunSpec
from proctor.tasks.base import Task
from proctor.tasks.registry import get_task

LEASE_TIMEOUT_S = 24 * 3600.0
DRAIN_TIMEOUT_S = 10.0
FOREIGN_EVERY_TICKS = 10
PARENT_POLL_S = 1.0


def work(folder: RunFolder, *, parent: int | None = None, clock: Clock | None = None) -> Result:
    """Do one run.

    Args:
        folder: The run folder, with its `run.json`.
        parent: Pid of the process that started this one; the run is ended cleanly when it is gone.
        clock: Where time comes from.

    Raises:
        ProctorError: The folder is no run, is being worked on, or has its result already.
    """
    spec = folder.spec()
    with folder.lock():
        if folder.result() is not None:
            raise UsageError(f"{folder.root} has its result already", "a run is done once; start a new experiment")
        if folder.workspace.exists():
            raise UsageError(
                f"{folder.root} was begun by a worker that is gone", "`proctor status` on the experiment closes it"
            )
        return Worker(folder, spec, clock or SystemClock()).run(parent)


class Worker:
    """The stages of one run."""

    def __init__(self, folder: RunFolder, spec: RunSpec, clock: Clock) -> None:
        self.folder = folder
        self.spec = spec
        self.clock = clock
        self.task: Task = get_task(spec.task)
        self.budget = BudgetClock(spec.budget_s, clock)
        self.events = EventLog(folder.events, clock, self.budget)
        self.facts = Facts()
        self.log = ScoreLog(folder.scores)
        self._stopping = threading.Event()
        self._supervisor: Supervisor | None = None
        self._phase = "preparing"

    def run(self, parent: int | None) -> Result:
        """Every stage, and a result whatever happens in them."""
        self.events.write("worker_started", pid=os.getpid())
        with self._stop_on_signals(parent), ExitStack() as stack:
            stack.callback(self._tidy)
            try:
                self._sit(stack)
            except FAULTS as error:
                known = isinstance(error, ProctorError)
                text = str(error) if known else f"{type(error).__name__}: {error}"
                self._failed(text)
            self.facts.take_clock(self.budget)
            self.facts.calls = sum(1 for entry in self.log.entries if entry.origin == "agent")
            result = build_result(self.spec, self.task, self.facts, self.log.entries)
            self._live("done")
            self.events.write("result", ended=result.ended.value, valid=result.valid, raw_score=result.raw_score)
            self.folder.write_result(result)
        return result

    def _failed(self, text: str) -> None:
        """A fault of ours ends the run; what was scored until then stays on record."""
        self.facts.reason = text
        self.facts.ended = Ended.INFRASTRUCTURE
        if self.facts.sealed.chosen is None:
            chosen = counting(self.log.entries, self.task.metric.direction, self.task.aggregation)
            self.facts.sealed = Sealed(chosen, None)
        self.events.write("infrastructure_failure", error=text)

    def _tidy(self) -> None:
        shutil.rmtree(self.folder.scratch, ignore_errors=True)
        for path in (self.folder.socket, self.folder.live):
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def _sit(self, stack: ExitStack) -> None:
        """The exam itself."""
        spec, task, folder = self.spec, self.task, self.folder
        kind = get_kind(spec.box)
        python = runtime_of(spec.python or default_python()).python
        # Data before the lease: building it may take minutes, in which the GPU would wait for nobody.
        assets = prepare_assets(task, spec.tier, Protocol(spec.protocol), spec.data_seed)
        self.facts.data = {"seed": assets.seed_label, "digest": assets.digest}
        lease = stack.enter_context(self._lease())
        self._describe(kind, lease, python)
        self._stop_if_asked()
        room = Room(
            kind=kind,
            python=python,
            devices=tuple(device_nodes(lease.gpus)),
            env={**task.box_env(spec.tier, spec.device), **visible_env(lease.gpus)},
            hidden=hidden_paths(folder),
        )
        paths = kind.paths(folder.root)
        prompt = standard_prompt(spec, task, paths.workspace, paths.data)
        launch = get_agent(spec.agent.name).launch(Sitting(spec, task, paths, prompt, python))
        pool = self._pool(room, assets)
        stack.callback(pool.close)
        agent_files = lay_out(folder, spec, task, launch, prompt)
        inputs = inodes_under(assets.public, assets.private, folder.scratch / "locked")
        service = ScoringService(
            spec,
            task,
            assets,
            pool,
            Snapshots(folder.workspace, folder.snapshots, task.artefact, inputs),
            self.log,
            self.budget,
            self.clock,
            self.events,
            partial(drain, lease.uuids, DRAIN_TIMEOUT_S),
            lease.uuids,
            python,
        )
        self.events.write("warming")
        if lease.gpus:
            check_gpu(room, folder, len(lease.gpus))
        pool.fill(wait=True)
        self._stop_if_asked()
        silent = SilentSnapshots(service, self.budget, spec.silent_snapshots, folder.silent, self.events)
        box = partial(agent_box, folder, spec, task, assets, room, launch, agent_files)
        self._agent(lease, service, silent, launch, box)
        self._close(service, silent)

    def _lease(self) -> Lease:
        if not self.spec.gpus:
            return acquire(0, timeout_s=0.0, clock=self.clock, run_id=self.spec.run_id)
        self._live("waiting for a GPU")
        return acquire(
            self.spec.gpus,
            timeout_s=LEASE_TIMEOUT_S,
            clock=self.clock,
            run_id=self.spec.run_id,
            sleep=self._sleep_unless_stopped,
        )

    def _sleep_unless_stopped(self, seconds: float) -> None:
        self._stopping.wait(seconds)
        self._stop_if_asked()

    def _describe(self, kind: BoxKind, lease: Lease, python: str) -> None:
        """Probe what is enforced here, and write down on what the run takes place."""
        able = kind.capabilities()
        if not able.usable:
            raise InfrastructureError(
                f"the box {kind.name} cannot be used on this machine: {'; '.join(able.problems)}",
                "`proctor doctor` says what to do",
            )
        no_gpu = {} if lease.gpus else {"gpu": "no GPU in the box" if able.isolated else None}
        self.facts.enforced = able.enforced.model_copy(update=no_gpu)
        self.facts.hardware = hardware(lease.gpus)
        self.facts.versions = versions(python)
        self.events.write("enforced", box=kind.name, isolated=able.isolated, **self.facts.enforced.model_dump())
        about = {"hardware": self.facts.hardware, "versions": self.facts.versions, "data": self.facts.data}
        self.events.write("machine", **about)
        if not able.isolated:
            evidence = "the run took place outside of any box: hidden answers, host and network were open to the agent"
            self.facts.findings.append(Finding(rule="no_box", severity="warning", evidence=evidence))

    def _pool(self, room: Room, assets: Assets) -> CandidatePool:
        setup = CandidateSetup(
            kind=room.kind,
            candidate=tuple(self.task.folder / name for name in self.task.candidate_files),
            public=assets.public,
            python=room.python,
            env={"LANG": "C.UTF-8", "PROCTOR_TIER": self.spec.tier, "PROCTOR_DATA": "/data", **room.env},
            devices=room.devices,
            hidden=room.hidden,
            limits=self.spec.limits,
            root=self.folder.scratch / "candidates",
        )
        policy = self.task.policy
        return CandidatePool(setup, policy.warm, quiet=policy.freeze_while_scoring)

    def _agent(
        self,
        lease: Lease,
        service: ScoringService,
        silent: SilentSnapshots,
        launch: Launch,
        box_spec: Callable[[], BoxSpec],
    ) -> None:
        """Start the agent, keep its clock, end it."""
        spec, folder = self.spec, self.folder
        warnings: list[str] = []
        broker = Broker(
            folder.socket, self.task, service, self.budget, self.events, self._submitted, lambda: list(warnings)
        )
        sampler = UtilisationSampler(lease.uuids)
        try:
            box = get_kind(spec.box).start(box_spec())
            self.budget.start()
            self.facts.started_at = self.clock.now()
            started = self.facts.started_at.isoformat()
            self.events.write("agent_started", started_at=started, argv=list(launch.argv)[:20])
            service.attach(box)
            self._live("running")
            try:
                self._supervisor = Supervisor(box, self.budget, self.events, spec.grace_s, self._ticker(lease, sampler))
                broker.serve()
                if self._stopping.is_set():
                    self._supervisor.stop("interrupted")
                quota = spec.limits.workspace_bytes
                over = self._supervisor.limit
                with DiskWatch(folder.workspace, quota, self.events, over, warnings, box.pids):
                    sampler.start()
                    silent.start()
                    ending = self._supervisor.watch()
            finally:
                self._supervisor = None
                box.kill()
                self.budget.stop()
                service.attach_nothing()
                box.close()
        finally:
            broker.close()
            self.facts.gpu_busy_fraction = sampler.stop().busy_fraction
            silent.stop()
        self.facts.ended, self.facts.exit_code, self.facts.limit = ending.ended, ending.exit_code, ending.limit
        if not ending.tree_empty:
            evidence = "processes of the agent were still there after the kill"
            self.facts.findings.append(Finding(rule="tree_not_empty", severity="warning", evidence=evidence))

    def _submitted(self, note: str) -> None:
        if self._supervisor is not None:
            self._supervisor.submit(note)

    def _ticker(self, lease: Lease, sampler: UtilisationSampler) -> Callable[[], None]:
        """What is done once a second beside the agent: the live file, and a look for strangers on the GPU."""
        ticks = 0

        def tick() -> None:
            nonlocal ticks
            ticks += 1
            if lease.gpus and ticks % FOREIGN_EVERY_TICKS == 0:
                self._look_for_strangers(lease)
            self._live("running", sampler.so_far().busy_fraction)

        return tick

    def _look_for_strangers(self, lease: Lease) -> None:
        """Note who else computes on the leased GPUs. In a container the driver may name host pids, which nobody here
        can attribute: those are noted, not held against the run."""
        try:
            strangers = lease.foreign(_own_processes)
        except InfrastructureError as error:
            self.events.write("gpu_not_readable", error=error.message)
            return
        for stranger in strangers:
            finding = Finding(
                rule="foreign_gpu_process",
                severity="warning" if stranger.name else "note",
                evidence=str(stranger),
            )
            if finding not in self.facts.findings:
                self.facts.findings.append(finding)
                self.events.write("foreign_gpu_process", process=str(stranger))

    def _close(self, service: ScoringService, silent: SilentSnapshots) -> None:
        """Final scoring, sealing, the hidden curve, and the thinning of what was kept."""
        self._live("sealing")
        service.wait_idle()
        facts = self.facts
        facts.take_clock(self.budget)
        clock = {"used_s": facts.used_s, "scoring_s": facts.scoring_s, "frozen_s": facts.frozen_s}
        end = {"ended": facts.ended.value, "exit_code": facts.exit_code, "limit": facts.limit}
        self.events.write("agent_ended", **end, **clock, gpu_busy_fraction=facts.gpu_busy_fraction)
        used_s = self.spec.budget_s if facts.used_s is None else facts.used_s
        sealer = Sealer(self.spec, self.task, service, self.folder.snapshots, self.events, used_s)
        nothing_left = sealer.final()
        facts.sealed = sealer.seal(nothing_left)
        facts.findings += sealer.findings
        findings = [finding.model_dump() for finding in facts.findings]
        self.events.write("sealed", reason=facts.sealed.reason, ours=facts.sealed.ours, findings=findings)
        self._live("scoring the curve")
        try:
            sealer.curve(silent.taken, self._stopping.is_set)
            chosen = facts.sealed.chosen
            dropped = service.thin(ended=True, keep=frozenset({str(chosen.artefact)} if chosen else ()))
            self.events.write("thinned", dropped=dropped)
        except FAULTS as error:  # everything that counts is scored: the curve is worth an event
            self.events.write("curve_failed", error=f"{type(error).__name__}: {error}")

    def _live(self, phase: str, gpu_busy: float | None = None) -> None:
        """The small file that displays read; losing it loses nothing."""
        self._phase = phase
        best = counting(self.log.entries, self.task.metric.direction, self.task.aggregation)
        live = {
            "phase": phase,
            "at": self.clock.now().isoformat(),
            "elapsed_s": round(self.budget.elapsed(), 1),
            "remaining_s": round(self.budget.remaining(), 1),
            "best": best.score if best else None,
            "scorings": sum(1 for e in self.log.entries if e.origin == "agent"),
            "gpu_busy": gpu_busy,
        }
        with suppress(OSError):
            write_json(self.folder.live, live, sync=False)

    def _stop_if_asked(self) -> None:
        if self._stopping.is_set():
            raise InfrastructureError("the run was stopped before the agent started")

    @contextmanager
    def _stop_on_signals(self, parent: int | None) -> Iterator[None]:
        """SIGTERM and SIGINT, or the loss of the parent, end the run cleanly: what was earned is scored and kept."""

        def stop(reason: str) -> None:
            self._stopping.set()
            if self._supervisor is not None:
                self._supervisor.stop(reason)

        def on_signal(number: int, _: FrameType | None) -> None:
            stop(signal.Signals(number).name)

        main = threading.current_thread() is threading.main_thread()
        before = {n: signal.signal(n, on_signal) for n in (signal.SIGTERM, signal.SIGINT)} if main else {}
        done = threading.Event()

        def watch_parent() -> None:
            while not done.wait(PARENT_POLL_S):
                if os.getppid() != parent:
                    stop("the process that started this run is gone")
                    return

        if parent is not None:
            threading.Thread(target=watch_parent, name="parent", daemon=True).start()
        try:
            yield
        finally:
            done.set()
            for number, handler in before.items():
                signal.signal(number, handler)


def _own_processes() -> set[int]:
    """This worker and everything it started."""
    return {os.getpid(), *descendants(os.getpid())}
