"""Forked children: whatever another thread held at the fork is never free in the child, and is made anew there."""

import os
import weakref
from typing import Protocol


class Renewable(Protocol):
    """Something with locks, or with work of threads that a child does not have."""

    def after_fork_in_child(self) -> None:
        """Become usable in a child of which this thread is the only one."""


_renewables: "weakref.WeakSet[Renewable]" = weakref.WeakSet()
_registered: list[bool] = []


def renew_in_children(*renewables: Renewable) -> None:
    """Have ``after_fork_in_child`` called in every child that is forked from now on."""
    if not _registered:
        # Here and not at import: importing mmcache changes nothing in the process.
        _registered.append(True)
        os.register_at_fork(after_in_child=_after_fork)
    for renewable in renewables:
        _renewables.add(renewable)


def _after_fork() -> None:
    for renewable in list(_renewables):
        renewable.after_fork_in_child()
