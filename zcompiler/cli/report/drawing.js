"use strict";
// What the charts are drawn with: colours of the theme, numbers as text, moments for an axis, rows.

const TRACKS = ["phases", "compute", "update", "waits", "nvme_read", "nvme_write", "h2d", "d2h", "comm"];
const PARTS = { buffers: "--buffers", tensors: "--tensors", "at rest": "--resting" };
const MEASURED = 15, PLANNED = 9, HEAD = 17, GAP = 6, AXIS = 20, PLOT = 120;
function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function time(seconds) {
  const size = Math.abs(seconds);
  if (size >= 1 || size === 0) return +seconds.toPrecision(4) + " s";
  return size >= 1e-3 ? +(seconds * 1e3).toPrecision(4) + " ms" : +(seconds * 1e6).toPrecision(4) + " µs";
}

function bytes(n) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]])
    if (n >= size) return +(n / size).toPrecision(3) + " " + unit;
  return n + " B";
}

function ticks(from, to, most) {
  let step = 10 ** Math.floor(Math.log10((to - from) / most));
  for (const times of [1, 2, 5, 10]) if ((to - from) / (step * times) <= most) { step *= times; break; }
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return found;
}

// Each thread of a side is a row; the planned rows of a track stand below its measured ones.
function layOut(sides) {
  const rows = [];
  let y = AXIS;
  const known = [...TRACKS, ...new Set(Object.values(sides).flatMap((s) => s.events.map((e) => e[0])))];
  for (const track of new Set(known)) {
    const before = rows.length;
    let top = y + HEAD;
    for (const [side, height] of [["measured", MEASURED], ["planned", PLANNED]]) {
      const own = (sides[side]?.events ?? []).filter((e) => e[0] === track);
      for (const thread of [...new Set(own.map((e) => e[1]))].sort((a, b) => a - b)) {
        rows.push({ track, side, top, height, events: own.filter((e) => e[1] === thread), head: 0 });
        top += height + 2;
      }
    }
    if (rows.length > before) { rows[before].head = y; y = top + GAP; }
  }
  return [rows, y];
}

