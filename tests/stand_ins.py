"""A stand-in for nvidia-smi, for what no machine at hand has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.helpers import ROOT

A, B = "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f", "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc40"
SLICES = ("MIG-8f0c1d2e-0000-5555-aaaa-1234567890ab", "MIG-8f0c1d2e-0000-5555-aaaa-1234567890ac")


@dataclass
class Machine:
    """A folder with an nvidia-smi, and the environment in which programs find it. There is no driver.

    gpus: UUIDs, with those of their slices. mig: the GPUs in MIG mode. modes: compute modes that are not "Default".
    smi: what it says instead, with a status of 18.
    """

    folder: Path
    gpus: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {A: ()})
    mig: tuple[str, ...] = ()
    modes: Mapping[str, str] = field(default_factory=dict)
    smi: str | None = None

    def environ(self, **changes: str) -> dict[str, str]:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "nvidia-smi").write_text(self._nvidia_smi())
        (self.folder / "nvidia-smi").chmod(0o755)
        environ = {
            "PATH": f"{self.folder}:{os.environ['PATH']}",
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
        return "\n".join([
            "#!/bin/sh", 'case "$*" in', "-L)", *(f"echo '{line}'" for line in listing), ";;",
            "'--query-gpu=uuid,mig.mode.current,compute_mode --format=csv,noheader')",
            *(f"echo '{row}'" for row in rows), ";;",
            "*) echo \"no such option: $*\"; exit 6;;", "esac", "",
        ])  # fmt: skip
