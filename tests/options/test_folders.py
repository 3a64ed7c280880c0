from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from zcompiler.options import OptionError, Options, parse_options


def parse(raw: Any = None, **environ: str) -> Options:
    return parse_options(raw, environ={"HOME": "/home/me", **environ}, free_memory=lambda: 1)


@pytest.mark.parametrize(
    ("nvme", "paths"),
    [
        ("/a", ["/a"]),
        (Path("/a"), ["/a"]),
        (["/a", Path("/b")], ["/a", "/b"]),
        (("/b", "/a"), ["/b", "/a"]),
        ("/a/../b", ["/b"]),
    ],
)
def test_one_path_or_several(nvme: object, paths: list[str]) -> None:
    options = parse({"nvme": nvme}, ZINF_NVME="/other")
    assert options.nvme == tuple(map(Path, paths))
    assert not options.nvme_is_ours


def test_paths_do_not_depend_on_where_the_process_goes_later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert parse({"nvme": "here"}).nvme == (tmp_path / "here",)
    assert parse({"nvme": "~/there"}).nvme == (Path("/home/me/there"),)


@pytest.mark.parametrize("bad", ["", b"/a", 3, True, None, [], ["/a", "/a"], ["/a", "/b/../a"], ["/a", 3], "a\0b", {}])
def test_not_paths(bad: object) -> None:
    with pytest.raises(OptionError, match='option "nvme"'):
        parse({"nvme": bad})


def test_the_environment_names_the_default_folder() -> None:
    assert parse(ZINF_NVME="/a" + os.pathsep + "/b").nvme == (Path("/a"), Path("/b"))
    assert not parse(ZINF_NVME="/a").nvme_is_ours
    assert parse(ZINF_NVME="", XDG_CACHE_HOME="/cache").nvme == (Path("/cache/zinf"),)
    assert parse(XDG_CACHE_HOME="relative").nvme == (Path("/home/me/.cache/zinf"),)
    with pytest.raises(OptionError, match="ZINF_NVME, item 1"):
        parse(ZINF_NVME="/a" + os.pathsep)


def test_zinfs_own_folder_is_created_private_and_only_when_asked_for(tmp_path: Path) -> None:
    options = parse(XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()
    for _ in range(2):
        (folder,) = options.nvme_folders()
        assert folder == tmp_path / "cache" / "zinf"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_the_user_named_is_never_created(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    for options in (parse({"nvme": str(missing)}), parse(ZINF_NVME=str(missing))):
        assert options.nvme_folders() == (missing,)
    assert not missing.exists()


def test_an_own_folder_that_cannot_be_created_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match=r"cannot be created \(Not a directory\).*ZINF_NVME="):
        parse(XDG_CACHE_HOME=str(tmp_path / "file")).nvme_folders()


def test_the_dump_folder_is_created(tmp_path: Path) -> None:
    assert parse({"dump": tmp_path / "a" / "b"}).dump == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").is_dir()
    assert parse({"dump": str(tmp_path / "a")}).dump == tmp_path / "a"
    assert parse({"dump": None}).dump is None


def test_a_file_in_the_way_of_the_dump_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for bad in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OptionError, match='option "dump"') as caught:
            parse({"dump": bad})
        assert str(bad) in str(caught.value)


@pytest.mark.parametrize("bad", ["", 3, b"/a", True, ["/a"]])
def test_not_a_dump_folder(bad: object) -> None:
    with pytest.raises(OptionError, match='option "dump"'):
        parse({"dump": bad})
