"""Torch, the C++ compiler that Inductor calls, and CUDA."""

from __future__ import annotations

import ctypes
import importlib
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from zcompiler.cli.doctor.found import Compiler, Cuda, Torch

# What every kernel of Inductor's for the CPU is compiled with: Python's headers and OpenMP.
TRIAL = """
#include <Python.h>
#include <omp.h>
#include <vector>
extern "C" int threads() { return std::vector<int>(1, omp_get_max_threads())[0]; }
"""
PATIENCE = 60.0  # seconds for the trial, which takes less than one


def look_at_torch(load: Callable[[], Any] = lambda: importlib.import_module("torch")) -> Torch:
    try:
        torch = load()
    except (ImportError, OSError) as error:  # OSError where one of its libraries does not load
        return Torch(error=str(error))
    return Torch(str(torch.__version__), "", torch.version.cuda or "", torch.get_num_threads())


def find_compiler() -> str:
    """The compiler that Inductor would call. FileNotFoundError without one."""
    from zcompiler.torch_compat.compiling import cxx_compiler

    return cxx_compiler()


def run(command: Sequence[str], source: str) -> str:
    """What a command that reads `source` has said if it failed, else nothing."""
    try:
        done = subprocess.run(command, input=source, capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip() or f"it ended with status {done.returncode}"


def look_at_compiler(
    find: Callable[[], str] = find_compiler, run: Callable[[Sequence[str], str], str] = run
) -> Compiler:
    """Compiles a library of one line in a folder that is removed again."""
    try:
        compiler = find()
    except (ImportError, OSError) as error:
        return Compiler(missing=str(error))
    include = sysconfig.get_paths()["include"]
    with tempfile.TemporaryDirectory(prefix="zinf-") as folder:
        output = str(Path(folder) / "trial.so")
        said = run(
            [compiler, "-x", "c++", "-", "-std=c++17", "-shared", "-fPIC", "-fopenmp", f"-I{include}", "-o", output],
            TRIAL,
        )
    return Compiler(compiler, failed=_the_error_in(said))


def look_at_cuda(
    load: Callable[[str], Any] = ctypes.CDLL, load_module: Callable[[str], Any] = importlib.import_module
) -> Cuda:
    driver = ""
    try:
        version = ctypes.c_int()
        if load("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) == 0:
            driver = f"{version.value // 1000}.{version.value % 1000 // 10}"
    except (OSError, AttributeError):
        driver = ""  # no driver is no error
    try:
        load_module("cuda.core")
    except (ImportError, OSError):
        return Cuda(driver, False)
    return Cuda(driver, True)


def _the_error_in(said: str) -> str:
    """The line that says what was wrong: compilers say much more, and the linker's last line is not it."""
    lines = said.splitlines()
    return next((line.strip() for line in lines if "error" in line or "cannot find" in line), lines[0] if lines else "")
