"""Bytecode: its description, and the names in it that lead further."""

import dis
import enum
from collections.abc import Iterator
from types import CodeType
from typing import Any


def describe_bytecode(code: CodeType) -> tuple[Any, ...]:
    """Describe bytecode with its constants; positions in the file are left out, they change no output."""
    constants = tuple(describe_bytecode(c) if isinstance(c, CodeType) else _constant(c) for c in code.co_consts)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    arguments = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return (code.co_code, code.co_exceptiontable, constants, names, arguments)


class _Constant(enum.Enum):
    """Stands for constants of bytecode that have no encoding; an enum, since no constant can be one."""

    ELLIPSIS = "..."
    SLICE = "slice"


def _constant(constant: Any) -> Any:
    if constant is ...:
        return _Constant.ELLIPSIS
    if isinstance(constant, slice):
        return (_Constant.SLICE, constant.start, constant.stop, constant.step)
    return tuple([_constant(member) for member in constant]) if isinstance(constant, tuple) else constant


def global_names(code: CodeType) -> Iterator[str]:
    """Return the globals that code reads, that of nested functions included."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from global_names(constant)


def imports(code: CodeType, home: str) -> Iterator[str]:
    """Return the modules that code imports when it runs; for relative imports the module that the code is in."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "EXTENDED_ARG")]
    for level, _, step in zip(steps, steps[1:], steps[2:], strict=False):
        if step.opname == "IMPORT_NAME":
            yield home if level.argval else step.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from imports(constant, home)
