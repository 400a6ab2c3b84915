"""What control groups allow, read from files as the kernel writes them."""

from pathlib import Path

from mpitune._jit.limits import cores_allowed, memory_left

GIB = 1 << 30


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def test_a_pod_that_has_read_much_data_plans_as_a_fresh_one(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/\n")
    write(tmp_path, memory__max=8 * GIB, memory__current=1 * GIB, memory__stat="anon 1\ninactive_file 0\nfile 2")
    fresh = memory_left(tmp_path, own)
    write(tmp_path, memory__current=7 * GIB, memory__stat=f"anon 1\ninactive_file {6 * GIB}\nactive_file 2")
    assert memory_left(tmp_path, own) == fresh == 7 * GIB


def test_the_tightest_of_all_groups_counts(tmp_path: Path) -> None:
    """As in a Slurm job: the limit is on the job, the process in a step of it."""
    own = tmp_path / "own"
    own.write_text("0::/slurm/job_7/step_0\n")
    write(tmp_path / "slurm" / "job_7" / "step_0", memory__max="max", memory__current=GIB, cpu__max="max 100000")
    write(tmp_path / "slurm" / "job_7", memory__max=4 * GIB, memory__current=GIB, cpu__max="250000 100000")
    write(tmp_path / "slurm", memory__max="max", memory__current=9 * GIB)
    assert memory_left(tmp_path, own) == 3 * GIB and cores_allowed(tmp_path, own) == 2.5


def test_version_1_has_other_names(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("4:memory:/job\n2:cpu,cpuacct:/job\n0::/\n")
    files = {"memory__limit_in_bytes": 4 * GIB, "memory__usage_in_bytes": 3 * GIB}
    write(tmp_path / "memory" / "job", **files, memory__stat=f"inactive_file 5\ntotal_inactive_file {GIB}")
    write(tmp_path / "cpu" / "job", cpu__cfs_quota_us=150000, cpu__cfs_period_us=100000)
    assert memory_left(tmp_path, own) == 2 * GIB and cores_allowed(tmp_path, own) == 1.5


def test_without_limits_there_are_none(tmp_path: Path) -> None:
    own = tmp_path / "own"
    assert memory_left(tmp_path, own) is cores_allowed(tmp_path, own) is None
    own.write_text("4:memory:/a/host/name\n1:cpu:/\n0::/of/a/container\n")
    write(tmp_path, memory__max="max", memory__current=1)
    write(tmp_path / "cpu", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
    assert memory_left(tmp_path, own) is cores_allowed(tmp_path, own) is None
