from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import zcompiler.cli.app as app_module
from zcompiler.cli.app import app, main
from zcompiler.errors import ZinfError
from zcompiler.options import OPTIONS, options_table

COMMANDS = (
    "demo",
    "trace",
    "report",
    "options",
    "doctor",
    "calibrate",
    "clean",
    "dump",
    "explain",
    "diff",
    "check",
    "opt",
)


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["zinf", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_help_names_every_command() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert all(command in result.output for command in (*COMMANDS, "--version"))


def test_help_shows_commands_in_groups() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    order = [
        "See",
        "demo",
        "trace",
        "report",
        "options",
        "Machine",
        "doctor",
        "calibrate",
        "clean",
        "Schedules",
        "dump",
        "explain",
        "diff",
        "check",
        "opt ",
    ]
    places = [shown.index(f" {word}", shown.index(" See ")) for word in order]
    assert places == sorted(places)


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_fits_on_a_narrow_terminal_with_nothing_cut_off(command: str | None) -> None:
    arguments = [command, "--help"] if command else ["--help"]
    shown = CliRunner().invoke(app, arguments, env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).output
    assert "…" not in shown and all(len(line) <= 80 for line in shown.splitlines())
    if command is None:  # of each command one line
        rows = [line.split()[1] for line in shown[shown.index(" See ") :].splitlines() if line.startswith("│")]
        assert sorted(rows) == sorted(COMMANDS)


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0 and result.output.startswith("zinf ") and ", torch " in result.output


def test_options_shows_the_whole_table() -> None:
    shown = " ".join(CliRunner().invoke(app, ["options"]).output.split())
    for option in OPTIONS:
        for text in (option.name, option.accepts, option.default, option.why):
            assert text.replace("`", "").split()[-1] in shown
    assert CliRunner().invoke(app, ["options", "--markdown"]).output == options_table()


def test_a_bad_option_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "demo", "--memory", "1 GB") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("option \"memory\" cannot be '1 GB'")


@pytest.mark.parametrize("error", [ZinfError("no room [at] all"), FileNotFoundError(2, "No such file", "/gone")])
def test_an_error_of_ours_is_one_line_and_status_1(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing() -> None:
        raise error

    monkeypatch.setattr(app_module, "app", failing)
    assert run_main(monkeypatch) == 1
    assert capsys.readouterr().err == f"{error}\n"


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(app_module, "app", failing)
    with pytest.raises(KeyError):
        main()


def test_too_few_steps_and_a_missing_file_are_usage_errors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run_main(monkeypatch, "demo", "--steps", "2") == 2
    assert run_main(monkeypatch, "opt", str(tmp_path / "gone.zsched")) == 2


def test_opt_prints_what_the_passes_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def opt(*arguments: object) -> str:
        asked.append(arguments)
        return "zsched 1\n"

    monkeypatch.setattr("zcompiler.cli.opt.opt", opt)
    file = tmp_path / "a.zsched"
    file.touch()
    result = CliRunner().invoke(app, ["opt", str(file), "--passes", "gather-params", "--print-after-each"])
    assert (result.exit_code, result.output) == (0, "zsched 1\n")
    assert asked == [(file, "gather-params", True, False)]


def test_importing_zinf_and_its_command_does_not_import_torch() -> None:
    code = "import sys, zcompiler, zcompiler.cli.app; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
