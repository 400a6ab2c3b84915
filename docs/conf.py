"""The documentation as a site: make docs. Pages are the Markdown files of the repository, where they lie.

So a link between two files works on the site as it does in a checkout. The reference comes from the docstrings.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

project = "mpitune"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md", "slurm/*.md", "apptainer/*.md", "k8s/*.md", "benchmarks/results/*.md"]
exclude_patterns = [".*", "data", "results", "tests"]

html_theme = "furo"
html_title = "Hyperparameter search"
html_extra_path = ["site", "../results/example/report.html"]  # index.html, which leads to docs/index.html; report.html
html_copy_source = False
html_show_copyright = False
smartquotes = False  # --option stays --option

myst_heading_anchors = 4
default_role = "code"  # docstrings have names in single backticks
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # fields of a dataclass are listed once


def mark_code(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Make what is indented in a docstring an example: reStructuredText would take it for a quotation."""
    for i in range(len(lines) - 1, 0, -1):
        indented = lines[i].startswith("    ") and not lines[i - 1].strip()
        before = next((line for line in reversed(lines[:i]) if line.strip()), "")
        if indented and before and not before.startswith(" "):
            lines[i:i] = ["::", ""]


def leave_out_theirs(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """End the text of a search where scikit-learn's own begins, which is in the documentation of scikit-learn."""
    if "scikit-learn's own text:" in lines:
        del lines[lines.index("scikit-learn's own text:") :]


def add_title(app: Any, page: str, source: list[str]) -> None:
    """Give the table of a benchmark its name as a title."""
    if page.startswith("benchmarks/results/"):
        source[0] = f"# {Path(page).name}\n\n{source[0]}"


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_title)
    app.connect("autodoc-process-docstring", leave_out_theirs, priority=50)
    app.connect("autodoc-process-docstring", mark_code, priority=100)  # before napoleon
