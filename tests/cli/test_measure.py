from __future__ import annotations

import mmap

import pytest

from zcompiler.cli.measure import peak_rss, reset_peak_rss, rss

SIZE = 64 * 2**20
SLACK = 8 * 2**20


def test_the_peak_keeps_what_was_given_back_until_it_is_reset() -> None:
    before = rss()
    with mmap.mmap(-1, SIZE) as block:
        block.write(b"x" * SIZE)
        assert rss() > before + SIZE - SLACK
    peak = peak_rss()
    assert peak > rss() + SIZE - SLACK
    if not reset_peak_rss():
        pytest.skip("this kernel does not let the peak be reset")
    assert peak_rss() < peak - SIZE + SLACK
