"""Whether code that was never run on a machine of this kind may be trusted here: it is tried in a process of its own.

A wrong address makes a CUDA context unusable, and a deadlock never ends. So the check runs outside of the worker that
asks. The process tries one thing after the other and says at once what it found, so a crash takes back nothing that was
found before it. The verdict is kept in the user's own cache folder under what it depends on. One process of the user
checks at a time, and the others wait for its verdict.

A check is a module with a function

    def examine(*arguments: str) -> Iterator[tuple[str, str]]

that yields the name of each thing that it tried, and "" or what is wrong with it. The process is

    python -m mpitune.devices.selfcheck PARENT MODULE ARGUMENT...
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from mpitune._jit.folders import locked, private_folder, safe_caches
from mpitune.errors import printable
from mpitune.ranks.process import die_with
from mpitune.storage.files import written_whole

LIMIT_S = 180.0  # libraries on a slow network file system take a minute to import
REAP_S = 10.0  # a process whose GPU hangs may not even die
AGAIN_S = 3600.0  # a check that crashed or hung is tried again after this; another program may have been the cause


@dataclass(frozen=True)
class Verdict:
    """The result of a check.

    Attributes:
        findings: of each thing that was tried, "" or its fault.
        ended: how the process ended before its last finding, "" if it did not.
        seconds: that the check took.
        when: of its end, in seconds since 1970.
        kept: it is an earlier verdict, read from its file.
    """

    findings: Mapping[str, str] = field(default_factory=dict)
    ended: str = ""
    seconds: float = 0.0
    when: float = 0.0
    kept: bool = False

    def trusts(self, name: str) -> bool:
        """Whether this was tried and nothing is wrong with it."""
        return self.findings.get(name) == ""

    @property
    def problem(self) -> str:
        """The first thing that is wrong, in one line; "" if all is right."""
        wrong = [f"{name}: {problem}" for name, problem in self.findings.items() if problem]
        return next(iter([*wrong, *([self.ended] if self.ended else [])]), "")


def check(
    module: str,
    key: Mapping[str, str],
    *arguments: str,
    limit_s: float = LIMIT_S,
    again: bool = False,
    folder: Path | None = None,
) -> Verdict:
    """The verdict of `module.examine(*arguments)` for this key, by a process of its own if there is none yet.

    It waits while another process of this user checks the same. It raises nothing: what cannot be checked is not
    trusted, and what cannot be kept is checked again by the next one who asks.

    Args:
        module: which examines in a process of its own.
        *arguments: of its `examine`.
        key: all that the verdict depends on, such as GPU, driver, versions and a digest of the sources.
        limit_s: seconds after which the process is killed.
        again: check even if there is a verdict.
        folder: for verdicts; default: one of the user's own.
    """
    key = {"module": module, "arguments": " ".join(arguments), **key}
    name = "check-" + hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    verdict = None
    with suppress(OSError):  # no folder that can be written
        folder = folder or private_folder()
        with locked(folder / f"{name}.lock"):
            verdict = None if again else _read(folder / f"{name}.json", key)
            if verdict is None:
                verdict = run(module, *arguments, limit_s=limit_s)
                with written_whole(folder / f"{name}.json", "w") as file:
                    json.dump({"key": key, **_as_dict(verdict)}, file)
    return verdict or run(module, *arguments, limit_s=limit_s)


def run(module: str, *arguments: str, limit_s: float = LIMIT_S) -> Verdict:
    """The verdict by a process, which is killed after `limit_s` seconds with all that it started."""
    start, ended = time.monotonic(), ""
    command = [sys.executable, "-m", "mpitune.devices.selfcheck", str(os.getpid()), module, *arguments]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        with safe_caches():
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )  # fmt: skip
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            ended = f"no answer within {limit_s:g} s"
        finally:
            _kill(process)
        findings = dict(json.loads(line) for line in _lines(output))
        if not ended and code != 0:
            last = next(reversed(_lines(errors)), "")
            ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
            ended += f": {printable(last)[:300]}" if last else ""
    after = f" after {next(reversed(findings))!r}" if ended and findings else ""
    return Verdict(findings, ended + after, time.monotonic() - start, time.time())


def digest(*paths: Path) -> str:
    """A digest of files, and of all Python files in folders, for the key of a verdict."""
    files = [file for path in paths for file in (sorted(path.glob("*.py")) or [path])]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:16]


def gpu_key() -> dict[str, str]:
    """Name of the first visible GPU and version of its driver, without a context on it; {} where there is none."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {}
    device, version, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0) or cuda.cuDeviceGetName(name, 256, device):
        return {}
    cuda.cuDriverGetVersion(ctypes.byref(version))
    module = Path("/sys/module/nvidia/version")
    exact = module.read_text().strip() if module.exists() else ""
    return {"gpu": name.value.decode(errors="replace"), "driver": f"{exact} CUDA {version.value}"}


def _read(path: Path, key: Mapping[str, str]) -> Verdict | None:
    """The verdict that is kept, if there is one for this key that still holds."""
    try:
        kept = json.loads(path.read_text())
        if kept.pop("key") != key:
            return None
        verdict = Verdict(**kept, kept=True)
        recent = 0 <= time.time() - verdict.when < AGAIN_S
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return verdict if recent or not verdict.ended else None


def _as_dict(verdict: Verdict) -> dict[str, Any]:
    return dict(findings=verdict.findings, ended=verdict.ended, seconds=verdict.seconds, when=verdict.when)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # with compilers that it started
    with suppress(subprocess.TimeoutExpired):
        process.wait(REAP_S)


def _lines(file: IO[bytes]) -> list[str]:
    """Whole lines of what a process wrote."""
    file.seek(0)
    text = file.read().decode(errors="replace")
    return [line for line in text.split("\n")[: -1 if not text.endswith("\n") else None] if line.strip()]


def _examine(parent: int, module: str, arguments: Sequence[str]) -> None:
    """In the process: say what `examine` finds, as JSON lines on what was its standard output."""
    die_with(parent)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with os.fdopen(os.dup(1), "w") as findings:
        os.dup2(2, 1)  # whatever libraries print
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # so that an error comes last
        for finding in importlib.import_module(module).examine(*arguments):
            print(json.dumps(finding), file=findings, flush=True)
    sys.stderr.flush()
    os._exit(0)  # as a worker ends


if __name__ == "__main__":
    _examine(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
