"""The budget: what looking up may cost where nothing comes back, and how a cache notices that something does.

Every image that is processed earns a small share of its processing time, every hit what it saved; looking up and
storing is paid from that. While there is nothing left, images go to the processor as if there were no cache, and only
samples of some of them are remembered: an image whose sample was seen before is looked up all the same, since it may be
a repeat. So a cache costs a bounded share on traffic that only passes, and is back soon after repeats are.
"""

from collections.abc import Callable, Sequence

# The share of the processing time that may be spent where nothing comes back.
MAX_OVERHEAD = 0.02

# How much of the share is spent on look-ups; the rest is for what is not measured: wrapping, counting, samples.
_FOR_LOOK_UPS = 0.75

# To begin with, in seconds, and how deep repeats that are no hits (there is no room for them) may get into debt: enough
# for some dozens of images, little enough to be less than the share of the first thousands.
_BEGINNING = 0.04

# A long time of hits does not pay for a long time without: after so many seconds of cost it is noticed.
_MOST = 1.0

# What a look-up is taken to cost at most: the first ones import and make what later ones use.
_DEAREST_IMAGE = 0.005

# What a call that passes costs all the same, in seconds.
_PASSING = 50e-6

# What a call that passes earns at least.
_LEAST = 1e-6

# Even a sample costs more than may be spent on small images, so it is taken of one in four calls only; for a while after a
# repeat, of all.
_ONE_IN, _WATCHED_CALLS = 4, 512

# Samples that are remembered, in two generations; one takes some 60 bytes.
_SAMPLES = 16_384


class Budget:
    """What one cache may spend. ``share`` None is 2 % of the processing; with 1 it never steps aside.

    Amounts are seconds of one thread. Threads share it without a lock: what a race loses is noise.
    """

    def __init__(self, share: float | None) -> None:
        """Begin with enough for the first images."""
        share = MAX_OVERHEAD if share is None else share
        self._share = share if share >= 1 else share * _FOR_LOOK_UPS
        self.exhausted = False
        self._left = _BEGINNING
        self._seen: set[int] = set()
        self._seen_before: set[int] = set()
        self._turn = self._watched = 0

    def lets_pass(self, samples: Callable[[], Sequence[int]]) -> bool:
        """Whether images are to be processed without a look-up, now that nothing is left; samples them now and then."""
        self._turn = (self._turn + 1) % _ONE_IN
        if self._turn and self._watched <= 0:
            return True
        self._watched -= 1
        taken = samples()
        repeated = any(sample in self._seen or sample in self._seen_before for sample in taken)
        if len(self._seen) >= _SAMPLES:
            self._seen_before, self._seen = self._seen, set()
        self._seen.update(taken)
        if repeated:
            self._watched = _WATCHED_CALLS
        return not repeated or self._left <= -_BEGINNING

    def earn(self, seconds: float) -> None:
        """Earn what a hit saved."""
        self._change(seconds)

    def processed(self, seconds: float) -> None:
        """Earn a share of the time that the processor took."""
        self._change(self._share * seconds)

    def passed(self, seconds: float) -> None:
        """Earn what is left of that share after a call that passed; a little in any case, so that no debt lasts."""
        self._change(max(_LEAST, self._share * seconds - _PASSING))

    def pay(self, seconds: float, images: int) -> None:
        """Pay for the look-up of some images."""
        self._change(-min(seconds, _DEAREST_IMAGE * max(1, images)))

    def _change(self, seconds: float) -> None:
        self._left = max(-_BEGINNING, min(_MOST, self._left + seconds))
        self.exhausted = self._left <= 0 and self._share < 1
