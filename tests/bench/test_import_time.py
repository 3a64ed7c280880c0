from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench.import_time import BASE, HELD, STATEMENTS, report, seconds


@pytest.mark.parametrize("slow", HELD)
@pytest.mark.parametrize(("taken", "holds"), [(2.3, True), (2.5, False)])
def test_the_medians_decide(slow: str, taken: float, holds: bool, capsys: pytest.CaptureFixture[str]) -> None:
    done = {statement: [0.5, 0.5, 0.5] for statement in STATEMENTS}
    done |= {BASE: [2.0, 2.0, 9.0], slow: [taken, taken, 0.1]}
    assert report(done) is holds
    assert ("yes zcompiler takes" in capsys.readouterr().out) is holds


def test_what_the_backend_takes_is_only_told() -> None:
    assert report({statement: [9.0 if "backend" in statement else 2.0] for statement in STATEMENTS})


def test_an_import_is_timed_in_a_process_of_its_own(tmp_path: Path) -> None:
    assert 0.2 < seconds("time.sleep(0.2)", str(tmp_path)) < 60
    assert seconds("import fractions", str(tmp_path)) > 0
    assert list(tmp_path.rglob("fractions.*.pyc"))
    with pytest.raises(subprocess.CalledProcessError):
        seconds("import no_such_module", str(tmp_path))
