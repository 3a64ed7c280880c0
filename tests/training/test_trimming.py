"""Free memory goes back to the system where it would count against the limit, and stays where nobody needs it."""

import os
import subprocess
import sys

import pytest
import torch

from zcompiler.free_memory import anonymous_memory
from zcompiler.options import parse_options
from zcompiler.training.session import Session, session_for
from zcompiler.training.trimming import FULL, KEPT, LEAST, Trimming

MIB = 1 << 20
LIMIT = 4000 * MIB
OTHERS = 300 * MIB


class Process:
    """Holds `used` bytes, and `free` ones until they are trimmed."""

    def __init__(self, used, free=0, tells=True):
        self.used, self.free, self.tells, self.trims = used, free, tells, 0

    def resident(self):
        return self.used + self.free if self.tells else None

    def trim(self):
        self.free, self.trims = 0, self.trims + 1


def trimming(process):
    return Trimming(LIMIT, process.resident, process.trim)


def after_a_step(process):
    """A trimming that knows what is not counted: `OTHERS`."""
    it = trimming(process)
    it.all_of(process.used - OTHERS)
    process.trims = 0
    return it


def test_nothing_is_trimmed_far_below_the_limit():
    process = Process(OTHERS + 800 * MIB)
    it = after_a_step(process)
    process.free = 300 * MIB
    assert not it.full()
    it.freed(LEAST + 1)
    assert (process.trims, process.free) == (0, 300 * MIB)


def test_near_the_limit_what_was_freed_goes_back():
    process = Process(OTHERS + 1200 * MIB)
    it = after_a_step(process)
    process.free = int(FULL * LIMIT) - 1200 * MIB + 1
    assert it.full()
    it.freed(LEAST + 1)
    assert (process.trims, process.free) == (1, 0)


def test_what_was_freed_far_below_the_limit_counts_once_it_is_near():
    process = Process(OTHERS + 800 * MIB)
    it = after_a_step(process)
    it.freed(LEAST + 1)
    process.free = int(FULL * LIMIT)
    it.freed(1)
    assert process.trims == 1


def test_a_trim_waits_until_it_is_worth_it():
    process = Process(OTHERS + LIMIT)
    it = after_a_step(process)
    it.freed(LEAST)
    assert process.trims == 0
    it.freed(1)
    it.freed(LEAST)
    assert process.trims == 1


def test_what_the_process_grew_by_counts_like_what_was_freed():
    """A region's own temporaries lie now here and now there in the heap, and nobody tells of them."""
    process = Process(OTHERS + LIMIT)
    it = after_a_step(process)
    process.free = LEAST
    it.freed(0)
    assert process.trims == 0
    process.free += 1
    it.freed(0)
    assert (process.trims, process.free) == (1, 0)


def test_growth_counts_from_where_the_process_was_smallest():
    process = Process(OTHERS + LIMIT)
    it = after_a_step(process)
    process.used -= LEAST // 2  # a tensor so large that glibc gives it back by itself
    it.freed(0)
    process.free = LEAST + 1
    it.freed(0)
    assert process.trims == 1


def test_before_a_region_for_which_there_would_be_no_room_all_that_is_free_goes_back():
    process = Process(OTHERS + LIMIT - 100 * MIB)
    it = after_a_step(process)
    process.free = LEAST // 2
    it.freed(0)
    it.before(100 * MIB - LEAST // 2)
    assert process.trims == 0
    it.before(100 * MIB - LEAST // 2 + 1)
    assert (process.trims, process.free) == (1, 0)
    it.before(LIMIT)  # nothing is free
    assert process.trims == 1


def test_an_arena_gives_back_what_it_no_longer_uses_only_near_the_limit():
    process = Process(OTHERS + LIMIT)
    it = after_a_step(process)
    assert not it.too_idle(it.kept + LEAST)
    assert it.too_idle(it.kept + LEAST + 1)
    process.used = OTHERS + LIMIT // 2
    assert not it.too_idle(LIMIT // 2)


def test_a_session_gives_what_its_arena_no_longer_uses_back_within_a_phase(tmp_path):
    session = Session(parse_options({"memory": "48MiB", "nvme": str(tmp_path), "machine": "laptop"}, environ={}))
    arena = session.runtime.arena(session.compute_tier)
    buffer = arena.alloc(32 * MIB)
    buffer.array[:] = 1
    buffer.free()
    held = anonymous_memory()
    assert arena.idle == 32 * MIB
    session.freed(0)
    assert arena.idle <= 48 * MIB // 40
    assert held - anonymous_memory() > 24 * MIB


def test_before_a_region_for_which_there_would_be_no_room_an_arena_keeps_nothing(tmp_path):
    session = Session(parse_options({"memory": "48MiB", "nvme": str(tmp_path), "machine": "laptop"}, environ={}))
    session.between_phases(ended=True)
    arena = session.runtime.arena(session.compute_tier)
    buffer = arena.alloc(MIB)
    buffer.array[:] = 1
    buffer.free()
    session.before(0)
    assert arena.idle == MIB
    session.before(64 * MIB)
    assert arena.idle == 0


def test_what_a_caller_still_holds_of_the_last_call_is_planned_for_so_it_is_nobody_elses(tmp_path):
    session = Session(parse_options({"memory": "48MiB", "nvme": str(tmp_path), "machine": "laptop"}, environ={}))
    process = Process(OTHERS)
    session._trimming = Trimming(48 * MIB, process.resident, process.trim)
    session.between_phases(ended=True)
    before = session.stats().others
    held = torch.zeros(MIB)
    session.returned([held, held[1:], torch.zeros(MIB)])
    process.used += held.nbytes + 40 * MIB  # near the limit, so that it looks
    session.between_phases(ended=True)
    assert session.stats().others == before + 40 * MIB
    process.used += 40 * MIB
    del held
    session.between_phases(ended=True)
    assert session.stats().others == before + 84 * MIB


@pytest.mark.parametrize("trains", [True, False])
def test_a_forward_tells_what_it_returns_and_not_what_it_saves(tmp_path, trains):
    options = {"memory": "8MiB", "nvme": str(tmp_path), "machine": "laptop", "compute": "eager"}
    model = torch.compile(
        torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()), backend="zinf", options=options
    )
    with torch.set_grad_enabled(trains):
        out = model(torch.ones(32, 64))
    session = session_for(options)
    assert session._returned() == out.nbytes == 32 * 64 * 4
    del out
    assert session._returned() == 0


def test_a_graph_tells_before_each_region_what_it_is_going_to_take(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(Session, "before", lambda self, nbytes: told.append(nbytes))
    options = {"memory": "8MiB", "nvme": str(tmp_path), "machine": "laptop", "compute": "eager"}
    model = torch.compile(torch.nn.Linear(64, 64, bias=False), backend="zinf", options=options)
    model(torch.ones(32, 64)).sum().backward()
    schedule = session_for(options).schedules["graph0"]
    runs = [op for _, op in schedule.ops() if op.kind == "run"]
    assert told == [op.work + sum(schedule.value(name).nbytes for name in op.writes) for op in runs]
    assert max(told) >= 64 * 64 * 4


def test_the_less_may_be_held_the_less_is_left_untrimmed():
    """It comes on top of what is planned."""
    process = Process(OTHERS + 240 * MIB)
    small = Trimming(240 * MIB, process.resident, process.trim)
    small.freed(6 * MIB)
    assert process.trims == 0
    small.freed(1)
    assert process.trims == 1
    assert small.kept == 6 * MIB
    assert Trimming(1 << 40).kept == KEPT


def test_before_the_first_step_it_is_not_known_what_others_hold_so_all_goes_back():
    process = Process(OTHERS)
    it = trimming(process)
    assert it.full()
    it.freed(LEAST + 1)
    assert process.trims == 1


def test_where_the_system_does_not_tell_all_goes_back():
    process = Process(OTHERS, tells=False)
    it = trimming(process)
    it.all_of(0)
    assert it.full()


def test_what_others_hold_is_measured_again_after_each_step():
    process = Process(OTHERS + 800 * MIB)
    it = after_a_step(process)
    process.used += LIMIT // 2 + 200 * MIB  # the user's own
    assert it.full()
    it.all_of(800 * MIB)
    assert not it.full()


def test_anonymous_memory_grows_with_what_is_written():
    """In a process of its own: what other tests free would hide it."""
    code = (
        "from zcompiler.free_memory import anonymous_memory as now\n"
        "before = now(); held = bytearray(64 << 20); print(now() - before)\n"
    )
    grown = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert 64 * MIB <= grown < 68 * MIB


def test_anonymous_memory_leaves_mapped_files_out():
    page = os.sysconf("SC_PAGE_SIZE")
    assert anonymous_memory(lambda _: "900 50 20 1 0 40 0\n") == 30 * page


def test_a_kernel_that_does_not_tell():
    def missing(path):
        raise FileNotFoundError(path)

    assert anonymous_memory(missing) is None
    with pytest.raises(ValueError):
        anonymous_memory(lambda _: "")
