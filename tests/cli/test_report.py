"""The page of a trace: its numbers are those of the trace, and a real browser shows it, wide and narrow."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from markupsafe import escape

import zcompiler
from tests.conftest import on_a_disk
from zcompiler.cli.report.numbers import OUTSIDE, lanes, phases
from zcompiler.cli.report.page import page
from zcompiler.cli.report.read import Event, Side, read
from zcompiler.cli.report.words import count, rate, ratio, seconds, size

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def event(track: str, begin: float, end: float, step: int = 0, **details: Any) -> Event:
    return Event(track, 1, f"{track} {begin}", begin, end, step, details)


def side(*events: Event, steps: Sequence[tuple[float, float]] = ((0.0, 10.0),)) -> Side:
    return Side("measured", events, (), tuple(steps))


def test_a_phase_has_its_seconds_its_waits_and_the_bytes_of_its_lines() -> None:
    found = phases(
        side(
            event("phases", 1.0, 4.0)._replace(name="fwd"),
            event("phases", 4.0, 9.0)._replace(name="bwd"),
            event("nvme_read", 1.0, 2.0, region="fwd/l0", bytes=100),
            event("nvme_read", 3.0, 5.0, region="bwd/l0", bytes=30),
            event("nvme_write", 5.0, 6.0, bytes=7),  # no line of a schedule
            event("waits", 1.5, 2.0, lane="nvme_read"),
            event("waits", 9.5, 9.75, lane="nvme_write"),
        ),
        1,
    )
    assert {name: (cost.seconds, cost.exposed, cost.moved) for name, cost in found.items()} == {
        "fwd": (3.0, 0.5, {"nvme_read": 100.0}),
        "bwd": (5.0, 0.0, {"nvme_read": 30.0}),
        OUTSIDE: (2.0, 0.25, {"nvme_write": 7.0}),
    }


def test_a_phase_inside_another_takes_nothing_from_what_is_outside() -> None:
    outer, inner = event("phases", 0.0, 8.0)._replace(name="fwd"), event("phases", 2.0, 3.0)._replace(name="update")
    found = phases(side(outer, inner, event("waits", 2.5, 2.75, lane="nvme_write")), 1)
    assert (found[OUTSIDE].seconds, found["fwd"].exposed, found["update"].exposed) == (2.0, 0.0, 0.25)


def test_numbers_are_means_over_steps_and_what_was_not_ended_is_left_out() -> None:
    both = side(
        event("phases", 0.0, 1.0)._replace(name="fwd"),
        event("phases", 4.0, 7.0, 1)._replace(name="fwd"),
        event("nvme_read", 0.0, 0.5, region="fwd/l0", bytes=10),
        event("nvme_read", 0.25, 1.0, region="fwd/l0", bytes=10),  # beside the other: the lane is busy for one second
        event("nvme_read", 4.0, 7.0, 1, region="fwd/l0", bytes=60),
        event("nvme_read", 9.0, 9.5, 2, region="fwd/l0", bytes=1000),
        steps=((0.0, 4.0), (4.0, 8.0)),
    )
    assert phases(both, 2)["fwd"].seconds == 2.0 and phases(both, 2)["fwd"].moved == {"nvme_read": 40.0}
    (use,) = lanes(both, 2).values()
    assert (use.busy, use.moved, use.rate) == (2.0, 40.0, 20.0)


def test_numbers_have_three_digits_and_a_unit() -> None:
    assert [seconds(v) for v in (None, 0, 12.345, 0.0123456, 2e-6, 250.4)] == [
        *("–", "0", "12.3 s", "12.3 ms", "2 µs", "250 s")
    ]
    assert [size(v) for v in (0, 12, 1536, 2**20 * 1.9, 5 * 2**30)] == ["0", "12 B", "1.5 KiB", "1.9 MiB", "5 GiB"]
    assert (rate(1.5e9), ratio(3.0, 2.0), ratio(3.0, 0), ratio(1e9, 1.0)) == ("1.5 GB/s", "× 1.50", "–", "> × 100")
    assert (count(1, "step"), count(2, "step")) == ("1 step", "2 steps")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of two steps."""
    folder = on_a_disk(tmp_path_factory.mktemp("nvme"))
    module = torch.nn.Sequential(*(m for _ in range(3) for m in (torch.nn.Linear(64, 64), torch.nn.Tanh())))
    place = {"params": "nvme", "grads": "host", "optimizer": "nvme"}
    options = {"memory": "2MiB", "nvme": str(folder), "compute": "eager", "late": False, "place": place}
    model, optimizer = torch.compile(module, backend="zinf", options=options), torch.optim.AdamW(module.parameters())

    def step() -> None:
        model(torch.ones(8, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with zcompiler.trace() as recorded:
        step()
        step()
    recorded.save(folder / "two.json")
    return folder / "two.json"


def test_the_page_has_what_the_trace_has_and_asks_for_nothing(shared: Path) -> None:
    file = read(shared)
    text = page(file, "<two> & more")
    assert "<title>&lt;two&gt; &amp; more</title>" in text
    (recording,) = file.recordings
    for said in (*recording.about["schedules"].values(), *recording.about["plans"]["graph0"]["reasons"]):
        assert escape(said) in text
    for found in re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?([^\"')\s>]*)", text):
        assert found == "data:,"
    assert "http:" not in text and "https:" not in text and "import(" not in text
    (data,) = re.findall(r'<script type="application/json" id="data-0">(.*?)</script>', text)
    drawn = json.loads(data)["sides"]
    assert [len(drawn[name]["events"]) for name in ("measured", "planned")] == [
        len(s.events) for s in (recording.measured, recording.planned) if s is not None
    ]


def test_a_trace_that_could_not_be_planned_says_why(shared: Path, tmp_path: Path) -> None:
    content = json.loads(shared.read_text())
    content["zinf"]["sessions"][0] |= {"planned": None, "planned_steps": [], "why_not": "no <work> known"}
    (tmp_path / "bare.json").write_text(json.dumps(content))
    text = page(read(tmp_path / "bare.json"), "bare")
    assert "No planned times: no &lt;work&gt; known" in text


# What a reader does: point at a transfer, zoom, choose a step. The page stands in a frame of each width.
LOOK = """
const results = [];
async function look(frame) {
  const page = frame.contentDocument, view = frame.contentWindow, canvas = page.querySelector(".lanes");
  const box = canvas.getBoundingClientRect(), tip = page.getElementById("tip");
  const ink = (c) => {
    const pen = new OffscreenCanvas(c.width, c.height).getContext("2d", { willReadFrequently: true });
    pen.drawImage(c, 0, 0);
    return pen.getImageData(0, 0, c.width, c.height).data.reduce((a, v) => a + (v > 0), 0);
  };
  let said = "", side = "";
  for (let y = box.height / 2; y < box.height; y += 4)
    for (let x = 0; x < box.width; x += 2) {
      const at = { clientX: box.left + x, clientY: box.top + y };
      canvas.dispatchEvent(new view.PointerEvent("pointermove", at));
      if (!tip.hidden && tip.textContent.startsWith("nvme_read")) {
        side += tip.textContent.includes("measured") ? "measured " : "planned ";
        said = said || tip.textContent + "|" + (tip.getBoundingClientRect().right <= view.innerWidth);
        break;
      }
    }
  const before = ink(canvas);
  page.querySelector("[data-do=in]").click();
  const zoomed = ink(canvas);
  page.querySelectorAll(".steps button")[1].click();
  results.push({
    fits: page.documentElement.scrollWidth <= view.innerWidth, width: view.innerWidth, said,
    both: side.includes("measured") && side.includes("planned"),
    drawn: [before, zoomed, ink(canvas), ink(page.querySelector(".held"))],
    buttons: page.querySelectorAll(".steps button").length,
  });
}
addEventListener("load", async () => {
  for (const frame of document.querySelectorAll("iframe")) await look(frame);
  document.getElementById("result").textContent = JSON.stringify(results);
});
"""


def test_a_browser_shows_it_wide_and_narrow_without_an_error(shared: Path, tmp_path: Path) -> None:
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"no browser is installed ({', '.join(BROWSERS)}): the page is not looked at")
    inner = html.escape(page(read(shared), "two.json"))
    frames = "".join(f'<iframe style="width:{w}px;height:1500px" srcdoc="{inner}"></iframe>' for w in (1280, 400))
    outer = tmp_path / "outer.html"
    outer.write_text(f'<!doctype html><meta charset="utf-8"><pre id="result"></pre>{frames}<script>{LOOK}</script>')
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--window-size=1700,1600"]
    command += ["--virtual-time-budget=10000", outer.as_uri()]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert [line for line in run.stderr.splitlines() if "CONSOLE" in line] == []
    found = re.search(r'<pre id="result">(.*?)</pre>', run.stdout, re.DOTALL)
    assert found and found[1], run.stdout[:2000]
    wide, narrow = json.loads(html.unescape(found[1]))
    assert (wide["width"], narrow["width"]) == (1280, 400)
    for seen in (wide, narrow):
        assert seen["fits"] and seen["both"] and seen["buttons"] == 2
        assert re.search(r"nvme_read read \S+ nvme->host", seen["said"]) and seen["said"].endswith("|true")
        first, zoomed, step, held = seen["drawn"]
        assert min(first, zoomed, step, held) > 1000 and first != zoomed
