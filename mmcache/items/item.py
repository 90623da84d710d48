"""Items: private copies of a processor's output for one image, and fresh copies of them for callers.

An output is a tree of containers (dict, list, tuple, named tuple, and Hugging Face's BatchFeature) whose leaves are
tensors, arrays, PIL images and constants. Every leaf is copied on the way in, so that a view never pins its base and nothing done
to an output reaches the store, and again on the way out, so that every caller owns what it gets.
"""

import enum
import sys
from collections import OrderedDict, UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmcache.items.buffers import empty, is_large
from mmcache.items.codes import Coded
from mmcache.items.images import check_image, copy_image, image_bytes, is_image
from mmcache.items.storable import CONSTANTS, NotStorable

# What a node of the tree takes in CPython beside its data: an object header, a slot in its container.
_NODE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Item:
    """What one image became.

    ``value`` is the tree with private leaves (never hand it out: ``thaw`` gives copies), ``nbytes`` what it keeps
    alive, ``seconds`` how long its computation took.
    """

    value: Any
    nbytes: int
    seconds: float = 0.0

    def thaw(self) -> Any:
        """Return the output in fresh memory of the caller's own: same containers, dtypes, shapes and bits."""
        return copy_tree(self.value)


def freeze(value: Any, seconds: float = 0.0) -> Item:
    """Return an item with private copies of an output's leaves; raise `NotStorable` with the reason if it cannot be.

    Tensors must be plain, dense, on the CPU and outside any graph; arrays must hold no Python objects; images must be
    loaded, and of no class but Pillow's own.
    """
    nbytes = 0

    def copy_and_count(leaf: Any) -> Any:
        nonlocal nbytes
        private = _copy_outside_inference(leaf)
        nbytes += _leaf_bytes(private)
        return private

    frozen = copy_tree(value, copy_and_count, check=True)
    return Item(frozen, nbytes + _container_bytes(frozen), seconds)


def copy_tree(value: Any, copy_leaf: Callable[[Any], Any] | None = None, *, check: bool = False) -> Any:
    """Return a copy of a tree, in which each leaf is what ``copy_leaf`` (default: a plain copy) gives for it.

    With ``check``, a leaf that could not be given again exactly raises `NotStorable`.
    """
    copy_leaf = copy_leaf or _copy_leaf

    def walk_key(key: Any) -> Any:
        if check and type(key) not in CONSTANTS:
            raise NotStorable(f"an output with a key of type {type(key).__qualname__}")
        return key

    def walk(node: Any) -> Any:
        kind = type(node)
        if kind is list:
            return [walk(child) for child in node]
        if kind is tuple:
            return tuple([walk(child) for child in node])
        if kind is dict or kind is OrderedDict:
            return kind((walk_key(key), walk(child)) for key, child in node.items())
        if isinstance(node, tuple) and hasattr(node, "_fields") and not getattr(node, "__dict__", None):
            # Past its own constructor, which may do anything.
            return tuple.__new__(kind, [walk(child) for child in node])
        if isinstance(node, UserDict):
            # The instance's own attributes too: BatchFeature carries skip_tensor_conversion beside its data.
            twin = object.__new__(kind)
            twin.__dict__.update({name: walk(child) for name, child in vars(node).items()})
            return twin
        if check:
            _check_leaf(node)
        return copy_leaf(node)

    try:
        return walk(value)
    except RecursionError:
        raise NotStorable("an output that contains itself, or is nested too deeply") from None


def is_tensor(value: Any) -> bool:
    """Whether this is a torch tensor; asks without importing torch (a tensor exists only where torch is loaded)."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def expanded(value: Any) -> Any:
    """Return a tree in which all codes are what they stand for, in fresh memory; all else is the same."""
    return copy_tree(value, lambda leaf: leaf.expanded() if isinstance(leaf, Coded) else leaf)


def destined(value: Any, dtype: Any, device: Any) -> Any:
    """Return a tree whose real tensors have another dtype, and whose codes will be expanded as that one, on a device.

    Its other leaves are those of ``value``: only for trees that are copied or joined next.
    """

    def change(leaf: Any) -> Any:
        if isinstance(leaf, Coded):
            real = leaf.kind == "pt" and leaf.dtype.is_floating_point
            return leaf.destined(dtype, device) if real else leaf
        return leaf.to(dtype) if dtype is not None and is_tensor(leaf) and leaf.is_floating_point() else leaf

    return value if dtype is device is None else copy_tree(value, change)


def _copy_leaf(leaf: Any) -> Any:
    if isinstance(leaf, Coded):
        return leaf.expanded()
    if is_tensor(leaf):
        plain = leaf.device.type == "cpu" and str(leaf.layout) == "torch.strided" and leaf.is_contiguous()
        return empty(leaf.shape, leaf.dtype).copy_(leaf) if plain and is_large(leaf.nbytes) else leaf.clone()
    if isinstance(leaf, np.ndarray):
        return np.array(leaf, order="K", copy=True)
    return copy_image(leaf) if is_image(leaf) else leaf


def _copy_outside_inference(leaf: Any) -> Any:
    """Copy a leaf so that it can be used everywhere: a tensor made under ``inference_mode`` is refused by autograd."""
    if isinstance(leaf, Coded):  # made for an item
        return leaf
    if not is_tensor(leaf):
        return _copy_leaf(leaf)
    torch = sys.modules["torch"]
    with torch.inference_mode(False), torch.no_grad():
        return leaf.clone()


def _container_bytes(node: Any) -> int:
    """Return what the containers of a tree take, with the keys in them and without the leaves."""
    if isinstance(node, UserDict):
        node = vars(node)
    if isinstance(node, dict):
        return sys.getsizeof(node) + sum(sys.getsizeof(key) + _container_bytes(child) for key, child in node.items())
    if isinstance(node, list | tuple):
        return sys.getsizeof(node) + sum(map(_container_bytes, node))
    return 0


def _leaf_bytes(leaf: Any) -> int:
    if is_tensor(leaf):
        return int(leaf.untyped_storage().nbytes()) + _NODE_BYTES
    if isinstance(leaf, np.ndarray | Coded):
        return leaf.nbytes + _NODE_BYTES
    if is_image(leaf):
        return image_bytes(leaf) + _NODE_BYTES
    return sys.getsizeof(leaf) + _NODE_BYTES


def _check_leaf(leaf: Any) -> None:
    kind = type(leaf)
    # A record (np.void) is the one numpy scalar that can be written to.
    if (
        kind is Coded
        or kind in CONSTANTS
        or (isinstance(leaf, np.generic | np.dtype | enum.Enum) and not isinstance(leaf, np.void))
    ):
        return
    if kind is np.ndarray:
        if leaf.dtype.hasobject:
            raise NotStorable("an output array of Python objects (ragged lists, return_tensors='np'?)")
        return
    if is_image(leaf):
        check_image(leaf)
        return
    torch = sys.modules.get("torch")
    if torch is not None:
        if kind in (torch.dtype, torch.device, torch.Size):
            return
        if kind is torch.Tensor:
            _check_tensor(leaf, torch)
            return
    raise NotStorable(f"an output of type {kind.__module__}.{kind.__qualname__}")


def _check_tensor(tensor: Any, torch: Any) -> None:
    if tensor.device.type != "cpu":
        raise NotStorable(f"an output on {tensor.device.type}")
    if tensor.requires_grad:
        raise NotStorable("an output that requires grad")
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        raise NotStorable(f"an output tensor that is not plain and dense ({tensor.layout})")
