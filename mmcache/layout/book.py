"""The book of verdicts: each structure is tried once, on a thread of its own, and remembered."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from mmcache.layout.trial import Verdict

# A caller waits this long for a trial (most take well under a second); then it goes on without, and so does the trial.
PATIENCE_SECONDS = 3.0


class Trials:
    """The trials of one cache: at most one runs at a time, since it restores the random generators at its end."""

    def __init__(self) -> None:
        """Start with an empty book; the thread starts with the first trial."""
        self._verdicts: dict[bytes, Verdict] = {}
        self._running: dict[bytes, Future[None]] = {}
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def known(self, structure: bytes) -> Verdict | None:
        """Return the verdict on a structure, or None if there is none yet."""
        return self._verdicts.get(structure)

    def verdict(self, structure: bytes, trial: Callable[[], Verdict], *, patience: float) -> Verdict | None:
        """Return the verdict on a structure, running its trial if there is none; None if it is not there in time.

        ``patience`` is in seconds; with 0 the caller never waits.
        """
        known = self._verdicts.get(structure)
        if known is not None:
            return known
        with self._lock:
            running = self._running.get(structure)
            if running is None:
                self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="mmcache-trial")
                running = self._running[structure] = self._pool.submit(self._try, structure, trial)
        wait([running], timeout=patience)
        return self._verdicts.get(structure)

    def _try(self, structure: bytes, trial: Callable[[], Verdict]) -> None:
        try:
            verdict = trial()
        except Exception as error:  # noqa: BLE001 - a trial that fails is a verdict, and its reason is logged with it
            verdict = Verdict(reason=f"its trial failed: {type(error).__name__}: {error}")
        self._verdicts[structure] = verdict

    def settle(self) -> None:
        """Wait until no trial runs."""
        wait(list(self._running.values()))

    def after_fork_in_child(self) -> None:
        """Forget trials that run in the parent; what is in the book stays."""
        self._lock = threading.Lock()
        self._running = {}
        self._pool = None
