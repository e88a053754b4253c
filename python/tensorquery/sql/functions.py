"""Python functions in SQL: the arguments of `Session.register_udf`, pickling, and identity.

The compiled half calls `Function` from threads of its own.
"""

from __future__ import annotations

import atexit
import copyreg
import dis
import functools
import hashlib
import importlib
import pickle
import struct
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tensorquery import _core
from tensorquery._util.options import check_choice
from tensorquery.errors import ConfigError

__all__ = ["Function", "FunctionInfo"]

_VOLATILITIES = ("immutable", "stable", "volatile")

_PATIENCE = 5.0
"""Seconds that the end of the interpreter waits for calls that are under way."""

_INSTALL = "pip install 'tensorquery[udf]'"

# A thread that comes back into Python after the interpreter's end would end the process badly.
atexit.register(_core.end_calls, _PATIENCE)


class FunctionInfo(NamedTuple):
    """A registered function."""

    name: str
    """The name in SQL."""
    input_types: tuple[str, ...]
    """The types of its arguments, to which SQL casts them."""
    return_type: str
    """The type of its values."""
    volatility: str
    """``immutable``, ``stable`` or ``volatile``."""


class Function:
    """A user's function over Arrow arrays, with its types, and a digest that changes when it does.

    Args:
        name: The name in SQL.
        fn: The function.
        input_types: The types of its arguments.
        return_type: The type of its values.
        volatility: "immutable", "stable" or "volatile".

    Raises:
        ConfigError: An argument is malformed.
    """

    def __init__(
        self,
        name: str,
        fn: Callable[..., Any],
        input_types: Sequence[Any],
        return_type: Any,
        volatility: str = "immutable",
    ) -> None:
        if not isinstance(name, str) or not name.strip():
            raise ConfigError(f"a function name must be a non-empty string, got {name!r}")
        if not callable(fn):
            raise ConfigError(
                f"fn={fn!r} is a {type(fn).__name__} and cannot be called; give a function that takes and "
                "returns Arrow arrays"
            )
        if isinstance(input_types, str) or not isinstance(input_types, Sequence):
            raise ConfigError(
                f'input_types={input_types!r} must be a list with a type for each argument, for example ["int64"]'
            )
        self.name = name
        self.volatility = check_choice("volatility", volatility, _VOLATILITIES)
        self.types, texts = _core.function_types(list(input_types), return_type)
        self._fn = fn
        self.digest = _digest(name, texts, self.volatility, fn)
        self._prepare()

    def _prepare(self) -> None:
        # Imported here, and not by the thread that calls first.
        try:
            self._pyarrow: Any = importlib.import_module("pyarrow")
        except ImportError:
            self._pyarrow = None
        self._return_type: Any = None

    def call(self, arrays: list[Any]) -> Any:
        """Call the function.

        Args:
            arrays: An array for each argument, with ``__arrow_c_array__``.
        """
        pyarrow = self._pyarrow
        if pyarrow is None:
            return self._fn(*arrays)
        result = self._fn(*[pyarrow.array(array) for array in arrays])
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(result, numpy.ndarray) and result.ndim == 1:
            if self._return_type is None:
                with pyarrow.ipc.open_stream(self.types) as reader:
                    self._return_type = reader.schema.types[-1]
            return pyarrow.array(result, type=self._return_type)
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.name, _dumps(self._fn, self.name), self._state())

    def _state(self) -> dict[str, Any]:
        return {"types": self.types, "volatility": self.volatility, "digest": self.digest}

    def __repr__(self) -> str:
        return f"Function({self.name})"


def _restore(name: str, pickled: bytes, state: Mapping[str, Any]) -> Function:
    function = Function.__new__(Function)
    function.name = name
    function._fn = pickle.loads(pickled)
    function.__dict__.update(state)
    function._prepare()
    return function


def _dumps(fn: Callable[..., Any], name: str) -> bytes:
    """A pickle of the function: by the name of its module, or else by value."""
    try:
        plain = pickle.dumps(fn)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    else:
        # A definition of the script may be missing when a worker has imported it: behind
        # `if __name__ == "__main__"`, or in a notebook.
        if b"__main__" not in plain:
            return plain
        reason = "it is defined in __main__"
    try:
        cloudpickle: Any = importlib.import_module("cloudpickle")
    except ImportError as error:
        raise ImportError(
            f"the function {name} cannot be sent to worker processes by its name ({reason}), and cloudpickle, which "
            f"sends it by value, is not installed: {_INSTALL}, or define it in a module, or use num_workers=0 or "
            'multiprocessing_context="fork"'
        ) from error
    try:
        pickled: bytes = cloudpickle.dumps(fn)
    except Exception as error:
        raise ConfigError(
            f"the function {name} cannot be sent to worker processes, because it cannot be pickled "
            f"({type(error).__name__}: {error}); make what it needs inside of the function, or use num_workers=0 or "
            'multiprocessing_context="fork"'
        ) from error
    return pickled


# The identity of a function, computed below, is equal in all processes that run one script. It changes when
# its code, its defaults, what it closes over or the helpers and constants of its module that it names change.


def _digest(name: str, types: list[str], volatility: str, fn: Callable[..., Any]) -> str:
    found = hashlib.sha256()
    identity = _Identity(fn)
    for token in ("tensorquery-udf-1", name, *types, volatility, *identity.of(fn)):
        encoded = token if isinstance(token, bytes) else token.encode(errors="surrogatepass")
        found.update(struct.pack("<q", len(encoded)))
        found.update(encoded)
    return found.hexdigest()[:16]


class _Identity:
    """Walks over a function and everything it uses, and yields each part as text or bytes.

    Args:
        fn: The function whose module's own helpers and classes are looked into.
    """

    def __init__(self, fn: Any) -> None:
        self._module = getattr(fn, "__module__", None) or type(fn).__module__
        self._seen: dict[int, int] = {}
        # Ids are of living objects only.
        self._kept: list[Any] = []

    def of(self, value: Any) -> Iterator[str | bytes]:
        """Tokens of any value: its content if it is plain data, otherwise its code as far as it can be read."""
        if value is None or isinstance(value, bool | int | float | complex | str | range | slice):
            yield f"{type(value).__qualname__} {value!r}"
        elif isinstance(value, bytes | bytearray):
            yield type(value).__qualname__
            yield bytes(value)
        elif isinstance(value, tuple | frozenset | types.CodeType):
            # Whether two equal constants are one object depends on whether the module was compiled or loaded.
            yield from self._inside(value)
        elif id(value) in self._seen:
            yield f"again {self._seen[id(value)]}"
        else:
            self._seen[id(value)] = len(self._seen)
            self._kept.append(value)
            yield from self._inside(value)

    def _inside(self, value: Any) -> Iterator[str | bytes]:
        numpy = sys.modules.get("numpy")
        if isinstance(value, types.FunctionType):
            yield from self._function(value)
        elif isinstance(value, types.CodeType):
            yield from self._code(value)
        elif isinstance(value, types.MethodType):
            yield "method"
            yield from self.of(value.__func__)
            yield from self.of(value.__self__)
        elif isinstance(value, functools.partial):
            yield "partial"
            yield from self.of([value.func, list(value.args), value.keywords])
        elif isinstance(value, tuple | list):
            yield f"{type(value).__qualname__} {len(value)}"
            for item in value:
                yield from self.of(item)
        elif isinstance(value, set | frozenset):
            yield f"{type(value).__qualname__} {len(value)}"
            # Strings have another order in each process.
            yield from sorted("\0".join(map(repr, _Identity(value).of(item))) for item in value)
        elif isinstance(value, Mapping):
            yield f"{type(value).__qualname__} {len(value)}"
            for key, item in value.items():
                yield from self.of(key)
                yield from self.of(item)
        elif numpy is not None and isinstance(value, numpy.ndarray) and not value.dtype.hasobject:
            yield f"ndarray {value.dtype.descr} {value.shape}"
            yield value.tobytes()
        elif _is_tensor(value):
            yield f"tensor {value.dtype} {tuple(value.shape)}"
            yield from self._tensor(value)
        elif isinstance(value, type | types.ModuleType | types.BuiltinFunctionType):
            yield _name_of(value)
            if isinstance(value, type):
                yield from self._members(value)
        else:
            yield from self._object(value)

    def _function(self, function: types.FunctionType) -> Iterator[str | bytes]:
        yield "function"
        yield from self.of(function.__code__)
        yield from self.of(function.__defaults__)
        yield from self.of(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:
                yield "empty cell"
                continue
            yield from self.of(content)
        changed = _stored(function.__code__)
        for name in sorted(_names(function.__code__)):
            # A value that the function itself changes is no constant.
            if name not in function.__globals__ or name in changed:
                continue
            known = function.__globals__[name]
            inner = _function_in(known)
            is_helper = (
                isinstance(known, functools.partial)
                or (isinstance(known, type) and known.__module__ == function.__module__)
                or (inner is not None and inner.__module__ == function.__module__)
            )
            if is_helper or _is_constant(known):
                yield f"global {name}"
                yield from self.of(known)

    def _code(self, code: types.CodeType) -> Iterator[str | bytes]:
        yield f"code {code.co_argcount} {code.co_posonlyargcount} {code.co_kwonlyargcount} {code.co_flags}"
        yield code.co_code
        yield code.co_exceptiontable
        yield " ".join(code.co_names)
        for constant in code.co_consts:
            yield from self.of(constant)

    def _tensor(self, value: Any) -> Iterator[bytes]:
        torch = sys.modules["torch"]
        flat = value.detach().cpu().contiguous().flatten()
        yield flat.view(torch.uint8).numpy().tobytes()

    def _object(self, value: Any) -> Iterator[str | bytes]:
        kind = type(value)
        yield f"object {_name_of(kind)}"
        if kind.__module__.split(".")[0] == "pyarrow":
            for convert in ("to_pylist", "as_py", "__str__"):
                if hasattr(value, convert):
                    yield str(getattr(value, "type", ""))
                    yield from self.of(getattr(value, convert)())
                    return
        yield from self._members(kind)
        wrapped = _function_in(value)
        if wrapped is not None:
            yield from self.of(wrapped)
            return
        # The state that pickling it would save.
        try:
            reducer = copyreg.dispatch_table.get(kind)
            reduced = value.__reduce_ex__(4) if reducer is None else reducer(value)
        except Exception:
            reduced = ("", (), getattr(value, "__dict__", None))
        if isinstance(reduced, tuple):
            for part in reduced[1:3]:
                yield from self.of(part)
        else:
            yield str(reduced)

    def _members(self, kind: type) -> Iterator[str | bytes]:
        """The code of the methods and the plain constants of a user's class and of its bases."""
        for base in kind.__mro__:
            if base.__module__ != self._module:
                continue
            yield f"class {base.__qualname__}"
            for name, member in sorted(vars(base).items()):
                inner = _function_in(member)
                if inner is not None:
                    yield f"method {name}"
                    yield from self.of(inner)
                elif _is_constant(member) and not name.startswith("__"):
                    yield f"attribute {name}"
                    yield from self.of(member)


def _function_in(value: Any) -> types.FunctionType | None:
    """A function, also behind what a decorator makes of it: a method of a class, a property, a cache."""
    if isinstance(value, types.FunctionType):
        return value
    if isinstance(value, staticmethod | classmethod):
        return _function_in(value.__func__)
    if isinstance(value, property):
        return _function_in(value.fget)
    if isinstance(value, functools.cached_property):
        return _function_in(value.func)
    wrapped = getattr(value, "__wrapped__", None)
    return wrapped if isinstance(wrapped, types.FunctionType) else None


def _names(code: types.CodeType) -> set[str]:
    """The global names that code and the code inside of it use."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names(constant)
    return found


@functools.lru_cache(maxsize=256)
def _stored(code: types.CodeType) -> frozenset[str]:
    """The global names that code assigns to."""
    found = {
        str(step.argval)
        for step in dis.get_instructions(code)
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")
    }
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _stored(constant)
    return frozenset(found)


def _is_constant(value: Any) -> bool:
    """Whether it is plain data that nobody can change."""
    if isinstance(value, tuple | frozenset):
        return all(_is_constant(item) for item in value)
    return value is None or isinstance(value, bool | int | float | complex | str | bytes)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _name_of(value: Any) -> str:
    """A qualified name; of a script it is the same in the script and in its workers."""
    module = getattr(value, "__module__", "") or ""
    name = getattr(value, "__qualname__", getattr(value, "__name__", ""))
    return (
        f"{type(value).__name__} {'' if module in ('__main__', '__mp_main__') else module}.{name}"
    )
