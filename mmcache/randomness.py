"""The random generators of a process: Python's, NumPy's and torch's, read, compared and put back."""

import random
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class RandomStates:
    """The states of the global generators at one moment; equal if nothing was drawn in between."""

    python: Any
    numpy: tuple[Any, ...]
    torch: bytes | None

    def restore(self) -> None:
        """Put the generators back to this moment."""
        random.setstate(self.python)
        kind, keys, *rest = self.numpy
        np.random.set_state((kind, np.frombuffer(keys, np.uint32), *rest))
        if self.torch is not None:
            torch = sys.modules["torch"]
            torch.set_rng_state(torch.frombuffer(bytearray(self.torch), dtype=torch.uint8))


def random_states() -> RandomStates:
    """Return the states of the generators now."""
    kind, keys, *rest = np.random.get_state()
    torch = sys.modules.get("torch")
    torch_state = bytes(torch.get_rng_state().numpy()) if torch is not None else None
    return RandomStates(random.getstate(), (kind, np.asarray(keys).tobytes(), *rest), torch_state)
