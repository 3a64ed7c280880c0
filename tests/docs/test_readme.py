"""The README's own example is run, and what it prints is what the README shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.printed import printed

README = Path(__file__).parents[2] / "README.md"


def test_the_schedule_in_the_readme_is_the_one_its_example_prints(disk: Path) -> None:
    text = README.read_text()
    section = text[text.index("## Reading a schedule") :]
    code, shown = re.findall(r"```(?:python)?\n(.*?)```", section, re.DOTALL)[:2]
    assert shown in printed(code, disk)
    assert list(disk.iterdir()) == []


def pages() -> list[str]:
    return sorted(set(re.findall(r"\((docs/[^)#]+\.md)", README.read_text())))


@pytest.mark.parametrize("page", pages())
def test_pages_that_the_readme_names_exist(page: str) -> None:
    assert (README.parent / page).is_file()


def test_the_readme_leads_to_every_page_for_users() -> None:
    there = {f"docs/{file.name}" for file in (README.parent / "docs").glob("*.md")}
    assert there - set(pages()) == set()
