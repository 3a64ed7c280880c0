"""The virtual environments of the peers, which `make bench-peers` makes, and what of the system they want."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench.cgroup import Unavailable
from bench.turns import ROOT

FOLDER = ROOT / ".venv-peers"


def python(name: str, folder: Path = FOLDER) -> Path:
    """The interpreter of an environment. Unavailable when that has not been made."""
    if not (folder / name / "installed").exists():  # which make leaves when pip has ended well
        raise Unavailable(f"the environment {folder / name} is not there or not complete; run: make bench-peers")
    return folder / name / "bin" / "python"


def variables(interpreter: Path) -> Mapping[str, str]:
    """What a process with that interpreter has to know: where its programs are (ninja), and for deepspeed, which reads
    them when it is imported, that there is no accelerator to look for and where to keep the ops that it compiles."""
    return {
        "PATH": os.pathsep.join([str(interpreter.parent), os.environ.get("PATH", "")]),
        "DS_ACCELERATOR": "cpu",
        "TORCH_EXTENSIONS_DIR": str(interpreter.parents[1] / "extensions"),
    }


def need_deepspeeds_own() -> None:
    """Unavailable when what deepspeed compiles its ops with is not installed; names the packages."""
    missing = [package for package, there in (("g++", _compiler()), ("libaio-dev", _libaio())) if not there]
    if missing:
        raise Unavailable(
            f"deepspeed cannot compile its nvme ops without {' and '.join(missing)}; "
            f"run: apt-get install {' '.join(missing)}, or leave it out with --only"
        )


def _compiler() -> bool:
    return shutil.which("g++") is not None


def _libaio() -> bool:
    """Whether a program that includes libaio.h would compile."""
    if not _compiler():
        return True  # nobody can tell; the compiler is asked for first
    tried = subprocess.run(
        ["g++", "-E", "-x", "c++", "-"], input="#include <libaio.h>\n", text=True, capture_output=True
    )
    return tried.returncode == 0
