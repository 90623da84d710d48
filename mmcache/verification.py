"""Verification that goes on in traffic: which outputs are compared with the plain processor's before they are given.

A trial on small pictures can be fooled: by thresholds in size or count, budgets over a batch, content. So the first
batches of each structure are compared too, the first of each stratum (number of images, doubling of their pixels, kinds of
source), and a small share of all that follow.
"""

import threading
from collections import Counter
from collections.abc import Hashable

# So many joined outputs with a miss in them are compared for each structure: enough for what only happens sometimes.
_FIRST_MISSES = 8

# Then one in so many outputs: a tenth of a per cent of the work where everything hits, and still every few minutes.
_ONE_IN = 256
VERIFY_RATE = 1 / _ONE_IN

# Strata are few for one processor; more of them than this means that something in them never repeats.
_MOST_STRATA = 65_536


class Verification:
    """Which outputs of a cache are to be verified.

    ``rate`` is the share of later outputs: None is 1 in 256, 0 turns everything off.
    """

    def __init__(self, rate: float | None) -> None:
        """Start with nothing seen."""
        self._every = _ONE_IN if rate is None else round(1 / rate) if rate > 0 else 0
        self._seen: set[tuple[bytes, Hashable]] = set()
        self._misses: Counter[bytes] = Counter()
        self._outputs = 0
        self._lock = threading.Lock()

    def wants(self, structure: bytes, stratum: Hashable | None, *, missed: bool) -> bool:
        """Whether this output is to be verified.

        ``stratum`` is None for what needed no layout; ``missed`` says that something of it was computed just now.
        """
        if not self._every:
            return False
        with self._lock:
            self._outputs += 1
            if stratum is not None and self._is_first(structure, stratum, missed=missed):
                return True
            return self._outputs % self._every == 0

    def _is_first(self, structure: bytes, stratum: Hashable, *, missed: bool) -> bool:
        new = (structure, stratum) not in self._seen
        if len(self._seen) >= _MOST_STRATA:
            self._seen.clear()
        self._seen.add((structure, stratum))
        if missed and self._misses[structure] < _FIRST_MISSES:
            self._misses[structure] += 1
            return True
        return new

    def after_fork_in_child(self) -> None:
        """Replace the lock: the thread that may hold it is not in the child."""
        self._lock = threading.Lock()
