"""The rooms of docs/architecture.md import each other as pyproject.toml says, and a rank needs no heavy library."""

import ast
import re
import subprocess
import sys

from tests.helpers import ROOT
from tests.install.rooms import rooms

# Methods that write to paths. For what lies in the folder of a study `mpitune.storage.files` has functions instead.
WRITES = set("write_text write_bytes copy2 copyfile copytree savez savetxt savefig to_csv symlink symlink_to".split())
WRITES_OF = {("shutil", "copy"), ("shutil", "move"), ("np", "save"), ("OmegaConf", "save")}
NAMES = {"open", "fdopen", "FileIO", *(name for _, name in WRITES_OF)}
OTHERS = {  # files that write elsewhere, or are these functions
    "common/data.py": "downloads of data sets",
    "mnist_nn/parallel/log.py": "the log of a training",
    "mpitune/engine/worker.py": "a worker's own folder to work in, whose owner is checked",
    "mpitune/locks.py": "files of locks",
    "mpitune/processes/fork_server.py": "the pipe of a worker",
    "mpitune/storage/files.py": "these functions",
    "mpitune/svm/compiling.py": "/proc",
    "mpitune/track/follow.py": "a file that `open_lock` has opened",
    "mpitune/track/writers.py": "what is exported, to the path that the user names",
}


def test_the_rank_and_its_help_need_no_heavy_library() -> None:
    """What a rank imports, on a laptop or a login node, holds no GPU library, no MPI, no solver."""
    code = (
        "import sys, mpitune.cli, mpitune.engine.rank, mnist_svm.experiment, mnist_nn.experiment\n"
        "heavy = {'torch', 'torchvision', 'cuml', 'cupy', 'numba', 'sklearn', 'mpi4py', 'matplotlib', 'scipy'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_every_file_that_a_page_names_is_there() -> None:
    """Those with a folder: a name alone may be a file of the reader's."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = set(listed.stdout.split())
    tops = "|".join(sorted({name.split("/")[0] for name in files if "/" in name}))
    pages = [ROOT / name for name in files if name.endswith(".md")]
    named = {
        (page.name, name)
        for page in pages
        for name in re.findall(rf"(?<![\w/.-])((?:{tops})/[\w./-]+\.(?:py|sh|md))\b", page.read_text())
    }
    assert len(named) > 50
    assert not [(page, name) for page, name in sorted(named) if name not in files]


def test_what_is_written_to_a_folder_of_results_is_written_by_its_functions() -> None:
    """No call opens a path for writing where a stranger may have put a link or a pipe."""
    found: dict[str, list[str]] = {}
    word = re.compile(rf"\b({'|'.join(WRITES | NAMES)})\b")  # without one a file need not be parsed, which takes long
    for path in (path for room in sorted(rooms()) for path in (ROOT / room).rglob("*.py")):
        text = path.read_text()
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)] if word.search(text) else []
        if writing := [f"{call.lineno}: {ast.unparse(call)[:80]}" for call in calls if _writes(call)]:
            found[path.relative_to(ROOT).as_posix()] = writing
    assert {name: calls for name, calls in found.items() if name not in OTHERS} == {} and OTHERS.keys() <= found.keys()


def _writes(call: ast.Call) -> bool:
    """Whether a call opens a path for writing, other than a descriptor of one of the functions."""
    last = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if last not in WRITES | NAMES:  # which spares most calls the rest, that takes long
        return False
    on, _, name = ast.unparse(call.func).rpartition(".")
    first = ast.unparse(call.args[0]) if call.args else ""
    if name not in ("open", "fdopen", "FileIO"):
        return (name in WRITES or (on, name) in WRITES_OF) and first != "file"  # as `written_whole` has opened it
    modes = [*call.args[0 if on and name == "open" else 1 :], *(word.value for word in call.keywords)]
    texts = [mode.value for mode in modes if isinstance(mode, ast.Constant) and isinstance(mode.value, str)]
    writes = any(re.search("[wax+]", text) for text in texts)
    writes |= on == "os" and any(re.search("O_(WRONLY|RDWR|CREAT)", ast.unparse(mode)) for mode in modes)
    return writes and not re.match(r"(regular_file|open_part)\(|os.devnull|STREAMS|n$", first)
