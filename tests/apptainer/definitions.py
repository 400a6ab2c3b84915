"""Reading an Apptainer definition file: its sections and the defaults of its arguments."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.helpers import ROOT

FOLDER = ROOT / "apptainer"
SHELL = {"environment", "post", "runscript", "test"}  # sections that are scripts


@dataclass
class Definition:
    """header: the lines before the first section. sections: name to text, unindented."""

    header: str
    sections: dict[str, str]

    @property
    def arguments(self) -> dict[str, str]:
        """The defaults of %arguments."""
        return dict(line.split("=", 1) for line in self.lines("arguments"))

    def lines(self, section: str) -> list[str]:
        """The lines of a section that say something."""
        found = (line.strip() for line in self.sections[section].splitlines())
        return [line for line in found if line and not line.startswith("#")]

    def files(self) -> dict[str, str]:
        """Source to destination of %files."""
        return dict(line.split() for line in self.lines("files"))  # type: ignore[misc]

    def shell(self, section: str, **arguments: str) -> str:
        """A shell section with its templates filled in. Raises KeyError for one that %arguments does not have."""
        values = {**self.arguments, **arguments}
        return re.sub(r"{{\s*(\w+)\s*}}", lambda match: values[match[1]], self.sections[section])


def read(path: Path) -> Definition:
    header, *parts = re.split(r"^%(\w+)\n", path.read_text(), flags=re.MULTILINE)
    texts = [re.sub("^    ", "", text, flags=re.MULTILINE) for text in parts[1::2]]
    return Definition(header, dict(zip(parts[::2], texts, strict=True)))
