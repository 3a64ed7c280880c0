from __future__ import annotations

from pathlib import Path

import pytest

from zcompiler.cli.opt import opt, read_golden
from zcompiler.errors import ZinfError

TEXT = """# passes: gather-params
zsched 1
plan step rank=0 world=1
tier host 8KiB compute
tier nvme
value l0 param f32 2KiB shard=2KiB home=nvme
value y output f32 1KiB
region fwd/l0
  compute run fwd/l0 reads l0 writes y
# ----
"""


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    path = tmp_path / "x.zsched"
    path.write_text(TEXT)
    return path


def test_takes_the_passes_of_the_file_and_shows_what_they_leave_open(golden: Path) -> None:
    text = opt(golden)
    assert "nvme_read  read           l0 nvme->host\n" in text
    assert "# [leak] fwd/l0: l0:full@host (2KiB), made by read(l0)@fwd/l0, is never released\n" in text


def test_given_passes_replace_those_of_the_file(golden: Path) -> None:
    text = opt(golden, "gather-params,release-params")
    assert "release        l0:full@host\n" in text and "#" not in text


def test_prints_after_each_pass(golden: Path) -> None:
    text = opt(golden, "gather-params,release-params", print_after_each=True)
    assert text.count("zsched 1") == 3
    assert text.index("# after gather-params\n") < text.index("# after release-params\n")


def test_accept_rewrites_the_expected_half_only(golden: Path) -> None:
    assert opt(golden, accept=True) == f"{golden}: expected half rewritten\n"
    written = golden.read_text()
    assert written.startswith(TEXT)
    assert read_golden(written).expected == "\n".join(s for s in opt(golden).splitlines() if s[:1] != "#") + "\n"
    assert opt(golden, accept=True) == f"{golden}: unchanged\n"


def test_accept_refuses_a_file_that_is_no_golden(tmp_path: Path) -> None:
    path = tmp_path / "x.zsched"
    path.write_text(TEXT.replace("# ----\n", ""))
    with pytest.raises(ZinfError, match="accept is for goldens"):
        opt(path, accept=True)
    assert path.read_text() == TEXT.replace("# ----\n", "")


def test_two_separators_are_refused() -> None:
    with pytest.raises(ZinfError, match="the second is line 11"):
        read_golden(TEXT + "# ----\n")
