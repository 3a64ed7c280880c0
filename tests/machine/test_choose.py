"""Which machine is planned for: the named one, else the calibrated one, else a shipped one at this one's size."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import zcompiler
from tests.machine.described import SMALL
from zcompiler.machine.choose import calibrated_file, choose_machine, shipped_machine
from zcompiler.machine.file import parse_machine
from zcompiler.machine.table import MachineError
from zcompiler.options import MACHINES


def test_the_names_that_the_option_takes_are_the_shipped_files() -> None:
    folder = Path(zcompiler.__file__).parent / "machine" / "shipped"
    assert {path.stem for path in folder.iterdir()} == set(MACHINES)


@pytest.mark.parametrize("name", MACHINES)
def test_a_shipped_description_can_be_read(name: str) -> None:
    machine = shipped_machine(name)
    assert machine.name == name and machine.measured == ()


def test_a_name_a_path_the_calibrated_file_and_the_default(tmp_path: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    (tmp_path / "box.toml").write_text(SMALL)
    default = choose_machine(None, environ, tmp_path / "not" / "made")
    assert str(default) == "laptop (shipped with zinf, at the size of this machine; zinf calibrate measures it)"
    assert default.machine.lanes == shipped_machine("laptop").lanes
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert [tier.capacity for tier in default.machine.tiers][0] == memory >> 20 << 20

    calibrated_file(environ).parent.mkdir()
    calibrated_file(environ).write_text(SMALL)
    assert str(choose_machine(None, environ, tmp_path)) == "small (measured by zinf calibrate)"
    assert str(choose_machine("dgx-2", environ, tmp_path)) == "dgx-2 (shipped with zinf)"
    named = choose_machine(tmp_path / "box.toml", environ, tmp_path)
    assert str(named) == "small (a file named by the option machine)"
    assert named.machine == parse_machine(SMALL, "text")


def test_a_calibrated_file_that_is_wrong_is_no_reason_to_guess(tmp_path: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    calibrated_file(environ).parent.mkdir()
    calibrated_file(environ).write_text("name = 3")
    with pytest.raises(MachineError, match="machine.toml"):
        choose_machine(None, environ, tmp_path)


def test_the_calibrated_file_is_in_the_configuration_folder() -> None:
    assert calibrated_file({"HOME": "/home/me"}) == Path("/home/me/.config/zinf/machine.toml")
    assert calibrated_file({"HOME": "/home/me", "XDG_CONFIG_HOME": "/etc/me"}) == Path("/etc/me/zinf/machine.toml")
    assert calibrated_file({"HOME": "/h", "XDG_CONFIG_HOME": "rel"}) == Path("/h/.config/zinf/machine.toml")


def test_plan_and_statistics_say_which_machine(disk: Path, tmp_path: Path) -> None:
    box = tmp_path / "box.toml"
    box.write_text(SMALL)
    model = torch.nn.Linear(4, 4)
    options = {"nvme": str(disk), "compute": "eager", "machine": str(box), "dump": str(tmp_path / "dump")}
    torch.compile(model, backend="zinf", options=options)(torch.ones(2, 4))
    plan = (tmp_path / "dump" / "graph0" / "plan.txt").read_text()
    assert plan.startswith("machine: small (a file named by the option machine)\npipeline: ")
    assert zcompiler.stats(model).machine == "small (a file named by the option machine)"


def test_a_machine_file_that_is_wrong_stops_the_first_call(disk: Path, tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4)
    options = {"nvme": str(disk), "machine": str(tmp_path / "gone.toml")}
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"gone\.toml cannot be read"):
        torch.compile(model, backend="zinf", options=options)(torch.ones(2, 4))
    assert type(model.weight) is torch.nn.Parameter
