"""Python, torch, its compiler, CUDA."""

from __future__ import annotations

import re
from collections.abc import Iterator

from zcompiler.cli.doctor.found import Compiler, Cuda, Found, Torch
from zcompiler.cli.doctor.rows import Row

PYTHON = (3, 11)  # and later
TORCH = (2, 11), (2, 15)  # from, below
TESTED = "2.13.0"


def software(found: Found) -> Iterator[Row]:
    yield python(found.python)
    yield torch(found.torch)
    if not found.torch.error:
        yield compiler(found.compiler)
    yield gpu(found.cuda, found.torch)


def python(version: tuple[int, ...]) -> Row:
    text = ".".join(map(str, version))
    if version < PYTHON:
        return Row("Python", "problem", f"{text} is too old", "install Python 3.11 or later")
    return Row("Python", "ok", text)


def torch(found: Torch) -> Row:
    low, high = (".".join(map(str, v)) for v in TORCH)
    install = f'pip install "torch>={low},<{high}"'
    if found.error:
        return Row("torch", "problem", f"cannot be imported: {found.error}", install)
    version = tuple(map(int, re.findall(r"[0-9]+", found.version)[:2]))
    if not TORCH[0] <= version < TORCH[1]:
        return Row(
            "torch", "problem", f"{found.version} is not one of those that zinf knows ({low} to {high})", install
        )
    tested = "" if found.version.startswith(TESTED) else f"; the tests run with {TESTED}"
    return Row("torch", "ok", found.version + tested)


def compiler(found: Compiler) -> Row:
    about = "C++ compiler"
    if found.missing:
        return Row(
            about,
            "note",
            f"none, so regions run eagerly, which is slower: {found.missing}",
            "install g++ or clang++, or name one in CXX",
        )
    if found.failed:
        if "Python.h" in found.failed:
            remedy = "install Python's headers (python3-dev)"
        elif "omp" in found.failed:
            remedy = "install OpenMP for this compiler (libgomp, or libomp-dev for clang++)"
        else:
            remedy = "mend the compiler, or name another in CXX"
        said = f"{found.path} does not compile what Inductor needs: {found.failed}"
        return Row(about, "problem", said, f'{remedy}; or train with options={{"compute": "eager"}}')
    return Row(about, "ok", f"{found.path} works")


def gpu(cuda: Cuda, torch: Torch) -> Row:
    about, cpu = "GPU", "zinf computes on the processor"
    if not cuda.driver:
        return Row(about, "ok", f"no CUDA driver; {cpu}")
    said = f"the driver takes CUDA {cuda.driver}, torch is built "
    if not torch.cuda:
        return Row(about, "ok", f"{said}without CUDA; {cpu}")
    core = "cuda.core can be imported" if cuda.core else "cuda.core is missing"
    return Row(about, "ok", f"{said}for CUDA {torch.cuda}, {core}; {cpu} all the same: it has no device tier yet")
