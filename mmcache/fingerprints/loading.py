"""Loading the pixels of a lazily opened PIL image: by one thread at a time, and never again after a failure.

Two threads that touch one lazy image get wrong pixels without an exception, since both drive one decoder over one
file. A lock for each image would have to live somewhere, and images cannot be hashed, so the locks are striped by
``id``: two images that share a stripe only wait for each other.

A load that failed leaves the image with a part of its pixels, and for some files the next ``load`` returns as if
nothing had been wrong. So the failure is remembered for as long as the object lives, and raised again.
"""

import copy
import os
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

# Enough that threads of a pool seldom meet on one stripe by chance.
_STRIPES = 64

# Failures of images that are still alive; more of them than this means that somebody collects broken pictures.
_MOST_FAILURES = 4096


class UndecodableSource(Exception):
    """A source that cannot be read or decoded; ``error`` is the loader's own error.

    Internal: it keeps a bad source, whose error belongs to the caller, apart from a fault of mmcache.
    """

    def __init__(self, error: Exception) -> None:
        """Keep the loader's error."""
        self.error = error
        super().__init__(f"{type(error).__name__}: {error}")


# One list of locks under one name, so that making it at first use needs no lock that a fork could leave held.
_stripes: dict[str, list[threading.RLock]] = {}
_failures: dict[int, "tuple[weakref.ref[Image], Exception]"] = {}


def _new_locks() -> list[threading.RLock]:
    return [threading.RLock() for _ in range(_STRIPES)]


def _after_fork() -> None:
    """Replace the locks: one that another thread held at the fork is never free in the child."""
    _stripes["locks"] = _new_locks()


def locked(image: "Image") -> threading.RLock:
    """Return the lock of the stripe that this image is on; the same thread may take it twice."""
    locks = _stripes.get("locks")
    if locks is None:
        # Here and not at import: importing mmcache changes nothing in the process. Twice does no harm.
        os.register_at_fork(after_in_child=_after_fork)
        locks = _stripes.setdefault("locks", _new_locks())
    return locks[(id(image) >> 6) % _STRIPES]  # objects lie 16 bytes or more apart, images more


def load(image: "Image") -> None:
    """Load an image's pixels. Neither its frame nor what ``seek`` can do changes.

    Raises ``UndecodableSource`` with the loader's error, and the same again at each later load of this object.
    """
    with locked(image):
        known = _failures.get(id(image))
        if known is not None and known[0]() is image:
            raise UndecodableSource(_bare(known[1]))
        try:
            image.load()
        except Exception as error:
            _remember(image, error)
            raise UndecodableSource(error) from error


def _remember(image: "Image", error: Exception) -> None:
    key = id(image)

    def forget(reference: "weakref.ref[Image]") -> None:
        # Runs in the garbage collector: no lock, and only our own entry (the id may be somebody else's by now).
        known = _failures.get(key)
        if known is not None and known[0] is reference:
            _failures.pop(key, None)

    if len(_failures) >= _MOST_FAILURES:
        _failures.pop(list(_failures)[0], None)  # noqa: RUF015 - an iterator breaks when another thread adds one
    _failures[key] = (weakref.ref(image, forget), _bare(error))


def _bare(error: Exception) -> Exception:
    """Copy an error without traceback and causes, whose frames would keep the image alive."""
    try:
        bare = copy.copy(error)
    except Exception:  # noqa: BLE001 - an exception class may do anything in its constructor; the message remains
        bare = OSError(str(error))
    bare.__cause__ = bare.__context__ = None
    return bare.with_traceback(None)
