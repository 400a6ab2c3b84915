"""Weights that are divided among the processes, on disk: each writes its own shards, any number of them reads.

By torch.distributed.checkpoint. Its reader unpickles an index, which could run a stranger's code; here the index may
name nothing but the classes that describe tensors.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import StorageMeta

from mpitune.errors import StorageError, UsageError

Tensors = dict[str, dict[str, Tensor]]

_INDEX = {
    "torch": ("Size",),
    "torch.serialization": ("_get_layout",),
    "torch._utils": ("_get_layout",),
    "torch.distributed.checkpoint.metadata": (
        "ChunkStorageMetadata", "MetadataIndex", "Metadata", "StorageMeta", "TensorProperties", "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
}  # fmt: skip
_DTYPES = ("float32", "float64", "int64", "strided")


class _Index(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name in _INDEX.get(module, ()) or (module == "torch" and name in _DTYPES):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not part of an index of tensors")


class SafeReader(FileSystemReader):
    """Reads a checkpoint whose index names nothing but the classes that describe tensors."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        with open(Path(self.path) / ".metadata", "rb") as file:
            metadata = _Index(file).load()
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _Writer(FileSystemWriter):
    def storage_meta(self) -> StorageMeta:
        return StorageMeta()  # the path it was written to says nothing


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What fails is said in one line by who asked."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def write_shards(folder: Path, tensors: Tensors) -> None:
    """Every process writes its shards. All must call this. `folder` is replaced, and whole or not there."""
    part = folder.with_name(folder.name + ".part")
    if dist.get_rank() == 0:
        for path in (part, folder):  # of a training that did not live to name it, or of one before
            shutil.rmtree(path, ignore_errors=True)
    dist.barrier()
    try:
        with _quiet():
            dcp.save(_flat(tensors), storage_writer=_Writer(part))
        problem = ""
    except (CheckpointException, Exception) as error:  # of any process, raised in all
        problem = str(getattr(error, "failures", error))
    if dist.get_rank() == 0 and not problem:
        os.rename(part, folder)
    dist.barrier()
    if problem:
        raise StorageError(f"{folder} cannot be written ({problem.splitlines()[0][:200]}): fix that, then --resume")


def read_shards(folder: Path, tensors: Tensors) -> None:
    """Fill the tensors, which any number of processes may have written. All processes must call this."""
    try:
        with _quiet():
            dcp.load(_flat(tensors), storage_reader=SafeReader(folder))
    except (CheckpointException, Exception) as error:
        raise UsageError(f"{folder} is not a checkpoint of this program: train again, without --resume") from error


def same_folder(folder: Path) -> bool:
    """Whether all processes see the files that rank 0 makes in `folder`. All must call this."""
    token: list[Any] = [secrets.token_hex(8)]
    dist.broadcast_object_list(token, src=0)
    path = folder / f".seen-{token[0]}"
    if dist.get_rank() == 0:
        path.touch()
    dist.barrier()
    seen: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(seen, path.exists())
    if dist.get_rank() == 0:
        with contextlib.suppress(OSError):
            path.unlink()
    return all(seen)


def _flat(tensors: Tensors) -> dict[str, Any]:
    return {f"{kind}.{name}": tensor for kind, those in tensors.items() for name, tensor in those.items()}
