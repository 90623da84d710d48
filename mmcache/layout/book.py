"""The book of verdicts: each structure is tried once, on a thread of its own, and remembered."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from mmcache.layout.outcomes import DRAWS, RUNS_TO_BE_SURE
from mmcache.layout.verdict import Verdict

# A caller waits this long for a trial (most take well under a second); then it goes on without, and so does the trial.
PATIENCE_SECONDS = 3.0


# Each holds a copy of its processor and takes most of a second: what comes while so many wait is tried later, or never.
_MOST_WAITING = 32

# Identities whose structure is remembered: with limits of its own for each image, every image has another.
_MOST_STRUCTURES = 4096


# Readies a trial in the caller's thread (copies the processor, loads the picture), to be run on the trials' own.
Prepare = Callable[[], Callable[[], Verdict]]


class Trials:
    """The trials of one cache: at most one runs at a time, since it may have to put the random generators back."""

    def __init__(self) -> None:
        """Start with an empty book; the thread starts with the first trial."""
        self._verdicts: dict[bytes, Verdict] = {}
        self._running: dict[bytes, tuple[Future[None], float]] = {}
        self._structures: dict[tuple[bytes, str], bytes] = {}
        self._suspected: Counter[bytes] = Counter()
        self._waiting = 0
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def structure(self, identity: bytes, form: str, describe: Callable[[], bytes]) -> bytes:
        """Return the structure of an identity in a form, which ``describe`` gives the first time."""
        known = self._structures.get((identity, form))
        if known is None:
            if len(self._structures) >= _MOST_STRUCTURES:
                self._structures.clear()
            known = self._structures[identity, form] = describe()
        return known

    def known(self, structure: bytes) -> Verdict | None:
        """Return the verdict on a structure, or None if there is none yet."""
        return self._verdicts.get(structure)

    def verdict(self, structure: bytes, prepare: Prepare, *, patience: float) -> Verdict | None:
        """Return the verdict on a structure, running its trial if there is none; None if it is not there in time.

        ``prepare`` is called at once to give the trial that is to be run. ``patience`` is in seconds from the trial's
        beginning, whoever began it; with 0 the caller never waits.
        """
        if structure in self._verdicts:
            return self._verdicts[structure]
        if structure not in self._running and self._waiting < _MOST_WAITING:
            self._begin(structure, prepare())
        running, began = self._running.get(structure, (None, 0.0))
        if running is not None:
            wait([running], timeout=max(0.0, began + patience - time.monotonic()))
        return self.known(structure)

    def _begin(self, structure: bytes, trial: Callable[[], Verdict]) -> None:
        with self._lock:
            if structure in self._running:
                return
            if len(self._running) >= _MOST_STRUCTURES:  # an option that is another text at each call
                self._running.clear()
                self._verdicts.clear()
            self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="mmcache-trial")
            self._waiting += 1
            self._running[structure] = (self._pool.submit(self._try, structure, trial), time.monotonic())

    def begun(self, structure: bytes) -> bool:
        """Whether the trial of a structure runs or has run."""
        return structure in self._verdicts or structure in self._running

    def suspect(self, structure: bytes) -> None:
        """Note that random numbers were drawn during a plain run: if that is always so, there is no need of a trial.

        A trial would draw some too, and in the background it cannot put the generators back behind others' backs.
        """
        self._suspected[structure] += 1
        if self._suspected[structure] >= RUNS_TO_BE_SURE:
            self._verdicts[structure] = Verdict(reason=DRAWS)

    def _try(self, structure: bytes, trial: Callable[[], Verdict]) -> None:
        try:
            verdict = trial()
        except Exception as error:  # noqa: BLE001 - a trial that fails is a verdict, and its reason is logged with it
            verdict = Verdict(reason=f"its trial failed: {type(error).__name__}: {error}")
        self._verdicts[structure] = verdict
        with self._lock:
            self._waiting -= 1

    def condemn(self, structures: Sequence[bytes], reason: str) -> None:
        """Replace the verdicts on structures whose output turned out to be wrong."""
        for structure in structures:
            self._verdicts[structure] = Verdict(reason=reason)

    def settle(self) -> None:
        """Wait until no trial runs."""
        wait([running for running, _ in list(self._running.values())])

    def after_fork_in_child(self) -> None:
        """Forget trials that run in the parent; what is in the book stays."""
        self._lock = threading.Lock()
        self._running = {}
        self._waiting = 0
        self._pool = None
