"""Reading an Apptainer definition file, strictly: what the grammar does not have is an error.

Source of the grammar: the Apptainer user guide, chapter "Definition Files" (1.2 and later, which know %arguments).
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from tests.helpers import ROOT

FOLDER = ROOT / "apptainer"
DEFINITIONS = sorted(FOLDER.glob("*.def"))

KEYWORDS = {"bootstrap", "from", "stage", "registry", "namespace", "osversion", "mirrorurl", "updateurl", "include",
            "confurl", "gpg", "fingerprints", "library"}  # fmt: skip
AGENTS = {"library", "docker", "docker-daemon", "docker-archive", "oci", "oci-archive", "oras", "shub", "localimage",
          "scratch", "yum", "dnf", "debootstrap", "arch", "busybox", "zypper"}  # fmt: skip
SHELL = {"setup", "environment", "pre", "post", "runscript", "startscript", "test"}
SECTIONS = SHELL | {"files", "labels", "help", "arguments"}
OPTIONS = {"files": r"from \w+", "post": r"-c \S+", "runscript": r"-c \S+", "startscript": r"-c \S+", "test": r"-c \S+"}


@dataclass
class Definition:
    """header: keyword, in lower case, to value. sections: name to text, without what all its lines are indented by."""

    header: dict[str, str] = field(default_factory=dict)
    sections: dict[str, str] = field(default_factory=dict)

    @property
    def arguments(self) -> dict[str, str]:
        """The defaults of %arguments."""
        return dict(line.split("=", 1) for line in self.lines("arguments"))

    def lines(self, section: str) -> list[str]:
        """The lines of a section that say something."""
        found = (line.strip() for line in self.sections[section].splitlines())
        return [line for line in found if line and not line.startswith("#")]

    def files(self) -> list[tuple[str, str]]:
        """(source, destination) of %files."""
        pairs = [line.split() for line in self.lines("files")]
        return [(pair[0], pair[-1]) for pair in pairs]

    def shell(self, section: str, **arguments: str) -> str:
        """A shell section with its templates filled in. Raises KeyError for one that %arguments does not have."""
        values = {**self.arguments, **arguments}
        return re.sub(r"{{\s*(\w+)\s*}}", lambda match: values[match[1]], self.sections[section])


def read(path: Path) -> Definition:
    """Raises ValueError with the number of the line that is not of the grammar."""
    definition = Definition()
    section = None
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if match := re.match(r"%(\w+)(?:\s+(\S.*))?$", line):
            section, options = match.groups()
            if section not in SECTIONS or section in definition.sections:
                raise ValueError(f"line {number}: section %{section} is unknown or there twice")
            if options and not re.fullmatch(OPTIONS.get(section, "(?!)"), options):
                raise ValueError(f"line {number}: %{section} has no option {options}")
            definition.sections[section] = ""
        elif section is not None:
            if line and not line.startswith("    "):
                raise ValueError(f"line {number}: not indented, although in %{section}")
            definition.sections[section] += line[4:] + "\n"
        elif line.strip():
            keyword, colon, value = line.partition(":")
            if not colon or keyword.lower() not in KEYWORDS or not value.strip():
                raise ValueError(f"line {number}: no keyword of a header")
            if not definition.header and keyword.lower() != "bootstrap":
                raise ValueError(f"line {number}: a header begins with Bootstrap")
            definition.header[keyword.lower()] = value.strip()
    if definition.header.get("bootstrap") not in AGENTS:
        raise ValueError(f"no bootstrap agent {definition.header.get('bootstrap')}")
    return definition
