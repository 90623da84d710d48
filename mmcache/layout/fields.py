"""Fields: the rules by which one named output of single images joins to that of a batch.

A part is what the processor gives for *one* image (a batch of one): a tensor or array whose dim 0 is the image or its
rows, or a list. Misses run one by one, so parts are always whole: a batch is joined from them, never split.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mmcache.errors import NotJoinable
from mmcache.items.item import copy_tree, expanded
from mmcache.layout.arrays import Pad, join
from mmcache.layout.compare import difference
from mmcache.layout.rare import ABSENT, RunningOffset, Sometimes


class Field(Protocol):
    """One rule. Fields are values: equal ones join alike."""

    def join(self, parts: Sequence[Any]) -> Any:
        """Return the batch's output in fresh memory, or raise `NotJoinable`."""
        ...


@dataclass(frozen=True)
class Batched:
    """One row per image, or several: parts follow each other on dim 0; their other dims must agree."""

    def join(self, parts: Sequence[Any]) -> Any:
        """Concatenate on dim 0."""
        return join(parts, axis=0)


@dataclass(frozen=True)
class FlatFromSizes:
    """Rows per image given by another output, such as Qwen's ``pixel_values`` by ``image_grid_thw``.

    ``sizes`` names that output; an image has as many rows as the product of its sizes. Since parts come whole, they join
    as `Batched` ones do; what the name adds is for readers, and for whoever takes a batch apart.
    """

    sizes: str

    def join(self, parts: Sequence[Any]) -> Any:
        """Concatenate on dim 0."""
        return join(parts, axis=0)


@dataclass(frozen=True)
class Padded:
    """Parts follow each other on dim 0 and are padded at the end of every other dim to the largest of the batch.

    ``value`` is one value or, if padding is made of rows that are not constant, a whole row of the last dim.
    """

    value: Pad = 0

    def join(self, parts: Sequence[Any]) -> Any:
        """Pad with ``value``, concatenate on dim 0."""
        return join(parts, axis=0, pad=self.value)


@dataclass(frozen=True)
class PerImageList:
    """A list with one entry per image; the entries may have different shapes."""

    def join(self, parts: Sequence[Any]) -> Any:
        """Append the lists to each other."""
        if not all(isinstance(part, list) for part in parts):
            raise NotJoinable(f"PerImageList joins lists, not {type(parts[0]).__name__}")
        return join(parts, axis=0)


@dataclass(frozen=True)
class Nested:
    """Images of one sample: a flat list is *one* sample, its images follow each other on dim 1 (Idefics3)."""

    value: Pad = 0

    def join(self, parts: Sequence[Any]) -> Any:
        """Pad with ``value``, concatenate on dim 1."""
        return join(parts, axis=1, pad=self.value)


@dataclass(frozen=True)
class Same:
    """An output that does not depend on the image: all parts are equal."""

    def join(self, parts: Sequence[Any]) -> Any:
        """Return a copy of the first part, having compared the others with it."""
        first = expanded(parts[0])
        for part in parts[1:]:
            if found := difference(first, expanded(part)):
                raise NotJoinable(f"an output declared the same for all images differs: {found}")
        return copy_tree(first)


@dataclass(frozen=True)
class Layout:
    """A processor's fields: how single outputs join to a flat list's, and how samples join to a nested list's.

    ``samples`` is None where a nested list gives what the flat list of its images gives. A bare tensor or array as
    output has the one field ``""``. With ``whole_samples`` an image depends on the others of its sample (LLaVA-OneVision):
    then only the outputs of whole samples are joined, each that of a nested list of one sample.
    """

    fields: Mapping[str, Field]
    samples: Mapping[str, Field] | None = field(default=None)
    whole_samples: bool = False

    def join(self, outputs: Sequence[Any]) -> Any:
        """Return the output of a flat list from those of its images, in fresh memory."""
        return join_outputs(self.fields, outputs)

    def join_nested(self, outputs: Sequence[Any], counts: Sequence[int]) -> Any:
        """Return the output of a nested list from those of its images; ``counts`` is the number per sample."""
        if self.whole_samples:
            raise NotJoinable("an image depends on the others of its sample: only whole samples can be joined")
        if self.samples is None:
            return self.join(outputs)
        images = iter(outputs)
        return self.join_samples([self.join([next(images) for _ in range(count)]) for count in counts])

    def join_samples(self, outputs: Sequence[Any]) -> Any:
        """Return the output of a nested list from those of its samples, in fresh memory."""
        return join_outputs(self.fields if self.samples is None else self.samples, outputs)


def join_outputs(fields: Mapping[str, Field], outputs: Sequence[Any]) -> Any:
    """Join whole outputs (mappings with equal keys in equal order, or bare values) field by field."""
    first = outputs[0]
    if "" in fields:
        return fields[""].join(outputs)
    names = _names(fields, outputs)
    return with_values(first, {name: join_field(fields[name], name, outputs) for name in names})


def join_field(field: Field, name: str, outputs: Sequence[Any]) -> Any:
    """Join the outputs of one name; some fields look at the outputs beside it."""
    parts = [output.get(name, ABSENT) for output in outputs]
    return field.join_beside(parts, outputs) if isinstance(field, RunningOffset) else field.join(parts)


def _names(fields: Mapping[str, Field], outputs: Sequence[Any]) -> list[str]:
    """Return the names of a batch's outputs, in order; raise `NotJoinable` if the fields know others."""
    constant = {name for name, field in fields.items() if not isinstance(field, Sometimes)}
    if len(constant) == len(fields):
        names = list(outputs[0])
        fitting = set(names) == constant and all(list(output) == names for output in outputs)
    else:
        names = [name for name in fields if any(name in output for output in outputs)]
        fitting = constant <= set(names) and all(
            constant <= set(output) and list(output) == [name for name in fields if name in output]
            for output in outputs
        )
    if not fitting:
        raise NotJoinable(f"outputs with the names {sorted(fields)} expected, got {[list(o) for o in outputs]}")
    return names


def with_values(shell: Any, values: Mapping[str, Any]) -> Any:
    """Return a mapping of the same kind as ``shell`` (attributes included) with these values."""
    if isinstance(shell, dict):
        return type(shell)(values)
    twin = object.__new__(type(shell))
    attributes = {name: copy_tree(value) for name, value in vars(shell).items() if name != "data"}
    twin.__dict__.update(attributes, data=dict(values))
    return twin
