"""Stand-ins for what only a machine with a GPU has: nvidia-smi, NVIDIA's driver, NVML.

They act as the real ones do, as far as this project asks them, and answer with status or error where it asks more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.helpers import ROOT

A, B = "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f", "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc40"
SLICES = ("MIG-8f0c1d2e-0000-5555-aaaa-1234567890ab", "MIG-8f0c1d2e-0000-5555-aaaa-1234567890ac")
NVML = Path(__file__).with_name("nvml.c")

DRIVER = """
#include <string.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
static const char *uuids[] = {UUIDS};
int cuInit(unsigned f) { return CODE; }
int cuGetErrorString(int e, const char **s) {
    *s = e == 803 ? "system has unsupported display driver / cuda driver combination"
         : e == 46 ? "CUDA-capable device(s) is/are busy or unavailable" : "initialization error";
    return 0;
}
int cuDriverGetVersion(int *v) { *v = CUDA; return 0; }
int cuDeviceGetCount(int *n) { *n = sizeof uuids / sizeof *uuids; return 0; }
int cuDeviceGet(int *d, int n) {  /* the entry of CUDA_VISIBLE_DEVICES, by name or number */
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    const int count = sizeof uuids / sizeof *uuids;
    for (*d = 0; visible && *d < count; ++*d)
        if (strstr(visible, uuids[*d]))
            return 0;
    *d = n;
    return n < count ? 0 : 101;
}
int cuDeviceGetName(char *s, int n, int d) { strncpy(s, "Example GPU", n); return 0; }
int cuDeviceGetUuid_v2(unsigned char u[16], int d) {
    int n = 0;
    unsigned byte;
    for (const char *s = uuids[d]; *s && n < 16; s += 2) {
        s += *s == '-';
        sscanf(s, "%2x", &byte);
        u[n++] = byte;
    }
    return 0;
}
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = 0; return CONTEXT; }
int cuCtxSetCurrent(void *c) { return 0; }
int cuMemGetInfo_v2(size_t *f, size_t *t) { *t = 80ull << 30; *f = 79ull << 30; return 0; }
"""


@cache
def built(source: str, *options: str) -> bytes:
    """A shared library from C. Skips where there is no compiler."""
    if (compiler := shutil.which("cc") or shutil.which("gcc")) is None:
        pytest.skip("no C compiler to build a stand-in for the driver")
    with TemporaryDirectory() as folder:
        command = [compiler, "-shared", "-fPIC", *options, "-x", "c", "-", "-o", f"{folder}/built.so"]
        subprocess.run(command, input=source, text=True, check=True)
        return Path(folder, "built.so").read_bytes()


@dataclass
class Machine:
    """A folder with an nvidia-smi, a libcuda and an NVML, and the environment in which programs find them.

    gpus: UUIDs, with those of their slices. mig: the GPUs in MIG mode. modes: compute modes that are not "Default".
    apps: (pid, UUID, MiB) of processes that have a context. smi: what nvidia-smi says instead, with a status of 18.
    code, context: of cuInit and of the making of a context. cuda: that the driver is for.
    """

    folder: Path
    gpus: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {A: ()})
    mig: tuple[str, ...] = ()
    modes: Mapping[str, str] = field(default_factory=dict)
    apps: tuple[tuple[int, str, int], ...] = ()
    smi: str | None = None
    code: int = 0
    context: int = 0
    cuda: int = 13020
    driver: bool = True

    def environ(self, **changes: str) -> dict[str, str]:
        """Writes it all again. Skips where there is no C compiler."""
        self.folder.mkdir(exist_ok=True)
        library, nvml = self.folder / "libcuda.so.1", self.folder / "libnvidia-ml.so.1"
        for old in (library, nvml):
            old.unlink(missing_ok=True)  # a process may have it open: a new file takes its place
        if self.driver:
            uuids = ",".join(f'"{uuid.removeprefix("GPU-")}"' for uuid in self.gpus)
            options = [
                f"-DUUIDS={uuids}",
                f"-DCODE={self.code}",
                f"-DCONTEXT={self.context}",
                f"-DCUDA={self.cuda}",
            ]
            library.write_bytes(built(DRIVER, *options))
            names = ",".join(f'"{name}"' for uuid, slices in self.gpus.items() for name in (uuid, *slices))
            nvml.write_bytes(built(NVML.read_text(), f"-DDEVICES={names}"))
        (self.folder / "nvidia-smi").write_text(self._nvidia_smi())
        (self.folder / "nvidia-smi").chmod(0o755)
        environ = {
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "LD_LIBRARY_PATH": f"{self.folder}:{os.environ.get('LD_LIBRARY_PATH', '')}",
            "PYTHONPATH": str(ROOT),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            # All of them, also where the tests themselves run with the real ones hidden.
            "CUDA_VISIBLE_DEVICES": ",".join(name for uuid, slices in self.gpus.items() for name in slices or (uuid,)),
        }
        return {**environ, **changes}

    def _nvidia_smi(self) -> str:
        if self.smi is not None:
            return f"#!/bin/sh\necho '{self.smi}'\nexit 18\n"
        listing, rows = [], []
        for number, (uuid, slices) in enumerate(self.gpus.items()):
            listing.append(f"GPU {number}: Example GPU (UUID: {uuid})")
            listing += [f"  MIG 1g.10gb     Device  {n}: (UUID: {name})" for n, name in enumerate(slices)]
            mig = "Enabled" if slices or uuid in self.mig else "Disabled"
            rows.append(f"{uuid}, {mig}, {self.modes.get(uuid, 'Default')}")
        apps = [f"{pid}, {uuid}, {mib}" for pid, uuid, mib in self.apps]
        return "\n".join([
            "#!/bin/sh", 'case "$*" in', "-L)", *(f"echo '{line}'" for line in listing), ";;",
            "'--query-gpu=uuid,mig.mode.current,compute_mode --format=csv,noheader')",
            *(f"echo '{row}'" for row in rows), ";;",
            "'--query-compute-apps=pid,gpu_uuid,used_gpu_memory --format=csv,noheader,nounits')",
            *(f"echo '{app}'" for app in apps), ";;",
            "*) echo \"no such option: $*\"; exit 6;;", "esac", "",
        ])  # fmt: skip
