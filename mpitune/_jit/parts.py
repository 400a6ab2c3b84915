"""Compiled functions that call each other, of which each is optimised and made machine code once.

numba makes machine code of every function that a compiled one calls, its own and those of arrays included, then again
of both together, and so at every level of calls. Here only what Python calls becomes machine code, an `Outer`. What it
calls is put into it as LLVM code, which is optimised there and nowhere else. The solver's functions compile so in
three fifths of the time that `njit(cache=True)` takes, and are loaded in half of it.

For that, `_Linked` overrides what numba does not promise to keep: ``JITCodeLibrary._optimize_functions`` and
``finalize``. So pyproject.toml bounds numba, and a new release is tried before the bound is raised.
"""

from __future__ import annotations

import functools
import gc
import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace
from typing import Any

from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher, cpu_target
from numba.core.runtime import rtsys

from mpitune.folders import private_folder
from mpitune.locks import locked


class _Linked(JITCodeLibrary):
    """LLVM code that becomes machine code as a part of others only."""

    codegen = SimpleNamespace(set_env=lambda name, env: None)  # numba would write to memory of the machine code

    def _optimize_functions(self, ll_module: Any) -> None:
        """Leave functions as they are, which numba would optimise one by one before all are optimised together."""
        ll_module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        """Put in what the code calls, no more."""
        for library in dict.fromkeys(self._linking_libraries):
            if hasattr(self, "_reload_init"):  # from numba 0.62 on
                self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True


class _Files(IndexDataCacheFile):
    """The files of one function: an index, and one for the machine code of each signature.

    numba numbers the latter, so the index of one process could name what another one saves. Here names are digests.
    """

    def save(self, key: Any, data: Any) -> None:
        """Keep the machine code of a signature, after the index that names it."""
        overloads = self._load_index()
        if key not in overloads:
            digest = hashlib.sha256(self._dump((self._version, self._source_stamp, key))).digest()
            overloads[key] = self._data_name(int.from_bytes(digest[:8]))
            self._save_index(overloads)
        self._save_data(overloads[key], data)


class _Kept(FunctionCache):
    """Machine code on disk. Of processes of this node that need the same at a time one compiles, the others wait."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self.compiling = ExitStack()  # closed when it has compiled
        self._cache_file = _Files(self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """As numba's, which first imports all that compiling needs: that would take three times as long."""
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            if (kept := self._load_overload(sig, target_context)) is not None:
                return kept
        with suppress(OSError):  # no folder for locks can be made
            # On this machine: the home, where the code may be, need not have locks.
            digest = hashlib.sha256(f"{self._cache_path}/{self._impl.filename_base}".encode()).hexdigest()[:16]
            self.compiling.enter_context(locked(private_folder(local=True) / f"compile-{digest}.lock"))
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)


class Outer(CPUDispatcher):
    """A function that Python calls."""

    def enable_caching(self) -> None:
        """Keep the machine code on disk. Raises OSError or RuntimeError where no folder can be written."""
        self._cache = _Kept(self.py_func)

    def compile(self, signature: Any) -> Any:
        """As numba's, but functions that it calls are not compiled apart.

        Garbage collection is off: numba makes millions of objects, so it would take a tenth of the time.
        """
        collects = gc.isenabled()
        gc.disable()
        try:
            with global_compiler_lock, _linked_into(self.py_func.__qualname__), ExitStack() as compiling:
                if isinstance(self._cache, _Kept):
                    self._cache.compiling = compiling
                return super().compile(signature)
        finally:
            if collects:
                gc.enable()


class Inner(CPUDispatcher):
    """A function that compiled ones call. Where Python calls it, as tests do, ``whole`` makes the function for that."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], whole: Callable[..., Any]) -> None:
        super().__init__(function, locals={}, targetoptions=options)
        self._whole = whole

    def __call__(self, *arguments: Any) -> Any:
        """What the function returns, by a version of its own."""
        return self._alone(*arguments)

    @functools.cached_property
    def _alone(self) -> Any:
        return self._whole(self.py_func)


@contextmanager
def _linked_into(name: str) -> Iterator[None]:
    """Code that numba makes in this context is put into other code, except that of this function or another `Outer`."""
    codegen = cpu_target.target_context.codegen()
    before = vars(codegen).get("create_library")
    codegen.create_library = lambda own, **more: (JITCodeLibrary if own == name else _Linked)(codegen, own, **more)
    try:
        yield
    finally:
        del codegen.create_library
        if before is not None:
            codegen.create_library = before
