// One view of time for both charts of a session: what the lanes did, and what the tiers held.

const tip = document.getElementById("tip");

class Charts {
  constructor(root, data) {
    this.data = data;
    this.lanes = root.querySelector(".lanes");
    this.held = root.querySelector(".held");
    [this.rows, this.height] = layOut(data.sides);
    const all = Object.values(data.sides).flatMap((s) => [...s.events.map((e) => e[3]), ...s.steps.map((s) => s[1])]);
    const first = Math.min(...Object.values(data.sides).flatMap((s) => s.events.map((e) => e[2])), Infinity);
    this.whole = [Number.isFinite(first) ? first : 0, all.reduce((a, b) => Math.max(a, b), 1e-6)];
    this.tiers = [...new Set(Object.values(data.sides).flatMap((s) => s.held.map((h) => h[1])))];
    this.buttons(root);
    this.legend(root.querySelector(".memory"));
    this.listen(root);
    this.show(data.steps > 0 ? this.step(0) : this.whole);
  }

  step(i) {
    const own = Object.values(this.data.sides).flatMap((s) => s.events.filter((e) => e[6] === i));
    return [own.reduce((a, e) => Math.min(a, e[2]), Infinity), own.reduce((a, e) => Math.max(a, e[3]), 0)];
  }

  buttons(root) {
    const place = root.querySelector(".steps");
    for (let i = 0; i < this.data.steps && this.data.steps > 1; i++) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = "step " + (this.data.first + i);
      button.addEventListener("click", () => this.show(this.step(i)));
      place.append(button);
    }
    root.querySelector(".buttons").addEventListener("click", (event) => {
      const what = event.target.dataset.do;
      if (what === "all") this.show(this.whole);
      else if (what) this.zoom(what === "in" ? 0.5 : 2);
    });
  }

  legend(list) {
    const parts = this.data.sides.measured.parts;
    const entries = parts.map((part) => [part, PARTS[part] ?? "--other", ""]);
    if (this.data.sides.planned) entries.push(["planned, with what regions take while they run", "--planned", "line"]);
    entries.push(["the limit", "--limit", "line dashed"]);
    for (const [text, mark, kind] of entries) {
      const item = document.createElement("li");
      item.textContent = text;
      item.className = kind;
      item.style.setProperty("--mark", `var(${mark})`);
      list.append(item);
    }
  }

  listen(root) {
    for (const canvas of [this.lanes, this.held]) {
      let grabbed = null;
      canvas.addEventListener("pointerdown", (e) => {
        grabbed = [e.clientX, ...this.view];
        canvas.setPointerCapture(e.pointerId);
      });
      for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => { grabbed = null; });
      canvas.addEventListener("pointermove", (e) => {
        if (grabbed && Math.abs(e.clientX - grabbed[0]) > 3) {
          const by = (grabbed[0] - e.clientX) / canvas.clientWidth * (grabbed[2] - grabbed[1]);
          this.show([grabbed[1] + by, grabbed[2] + by]);
          tip.hidden = true;
        } else this.point(canvas, e);
      });
      canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
      canvas.addEventListener("dblclick", (e) => this.zoom(0.5, this.at(canvas, e)));
      canvas.addEventListener("wheel", (e) => {
        if (!e.ctrlKey) return;
        e.preventDefault();
        this.zoom(e.deltaY < 0 ? 0.8 : 1.25, this.at(canvas, e));
      }, { passive: false });
    }
    this.lanes.addEventListener("keydown", (e) => {
      const by = (this.view[1] - this.view[0]) / 5;
      if (e.key === "ArrowLeft") this.show([this.view[0] - by, this.view[1] - by]);
      else if (e.key === "ArrowRight") this.show([this.view[0] + by, this.view[1] + by]);
      else if (e.key === "+" || e.key === "-") this.zoom(e.key === "+" ? 0.5 : 2);
      else return;
      e.preventDefault();
    });
    new ResizeObserver(() => this.draw()).observe(root);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  at(canvas, event) {
    const x = (event.clientX - canvas.getBoundingClientRect().left) / canvas.clientWidth;
    return this.view[0] + x * (this.view[1] - this.view[0]);
  }

  zoom(by, around = (this.view[0] + this.view[1]) / 2) {
    this.show([around - (around - this.view[0]) * by, around + (this.view[1] - around) * by]);
  }

  show([from, to]) {
    const [first, last] = this.whole;
    const width = Math.min(Math.max(to - from, 1e-6), (last - first) * 1.02);
    const left = Math.min(Math.max(from, first - width * 0.01), last + width * 0.01 - width);
    this.view = [left, left + width];
    this.draw();
  }

  prepare(canvas, height) {
    const scale = devicePixelRatio || 1, width = canvas.clientWidth;
    canvas.style.height = height + "px";
    canvas.width = width * scale;
    canvas.height = height * scale;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.clearRect(0, 0, width, height);
    pen.font = "12px system-ui, sans-serif";
    const x = (t) => (t - this.view[0]) / (this.view[1] - this.view[0]) * width;
    pen.fillStyle = color("--quiet");
    pen.strokeStyle = color("--line");
    pen.lineWidth = 1;
    for (const at of ticks(...this.view, Math.max(3, width / 110))) {
      pen.beginPath();
      pen.moveTo(Math.round(x(at)) + 0.5, 0);
      pen.lineTo(Math.round(x(at)) + 0.5, height);
      pen.stroke();
      pen.fillText(time(at), x(at) + 3, 11);
    }
    return [pen, x, width];
  }

  draw() {
    if (!this.view || !this.lanes.clientWidth) return;
    const [pen, x, width] = this.prepare(this.lanes, this.height);
    const colors = Object.fromEntries(["fwd", "bwd", "update", "wait", "other"].map((n) => [n, color("--" + n)]));
    for (const row of this.rows) {
      if (row.head) {
        pen.fillStyle = color("--text");
        pen.fillText(row.track, 2, row.head + HEAD - 5);
      }
      const planned = row.side === "planned";
      for (const [, , begin, end, phase] of row.events) {
        if (end < this.view[0] || begin > this.view[1]) continue;
        const left = Math.max(-2, x(begin)), wide = Math.max(1, Math.min(width + 2, x(end)) - left - 0.5);
        pen.fillStyle = colors[phase] ?? colors.other;
        pen.globalAlpha = planned ? 0.28 : 1;
        pen.fillRect(left, row.top, wide, row.height);
        pen.globalAlpha = 1;
        if (planned && wide > 3) {
          pen.strokeStyle = pen.fillStyle;
          pen.strokeRect(left + 0.5, row.top + 0.5, wide - 1, row.height - 1);
        }
      }
    }
    this.drawHeld();
  }

  drawHeld() {
    const [pen, x, width] = this.prepare(this.held, AXIS + this.tiers.length * PLOT);
    this.tiers.forEach((tier, i) => {
      const top = AXIS + i * PLOT, floor = top + PLOT - 6;
      const sides = Object.entries(this.data.sides).map(([side, s]) => [side, s.held.filter((h) => h[1] === tier)]);
      const sum = (h) => h[2].reduce((a, b) => a + b, 0);
      const most = sides.flatMap(([, held]) => held).reduce((a, h) => Math.max(a, sum(h)), 1);
      // The limit is shown where it is not so far off that all else would lie on the floor.
      const limit = i === 0 && this.data.limit < most * 4 ? this.data.limit : 0;
      const high = Math.max(most, limit) * 1.06, y = (n) => floor - n / high * (PLOT - 28);
      const corners = (held, value) => held.flatMap((h, k) => {
        const until = k + 1 < held.length ? held[k + 1][0] : h[0];
        return [[x(h[0]), y(value(h))], [x(until), y(value(h))]];
      });
      const path = (points) => { pen.beginPath(); for (const [a, b] of points) pen.lineTo(a, b); };
      for (const [side, held] of sides) {
        if (!held.length) continue;
        if (side === "planned") {
          pen.strokeStyle = color("--planned");
          pen.lineWidth = 1.2;
          for (const [begin, end] of this.data.sides[side].steps) {
            path(corners(held.filter((h) => begin <= h[0] && h[0] <= end), sum));
            pen.stroke();
          }
          continue;
        }
        this.data.sides[side].parts.forEach((part, k) => {
          const upTo = (n) => (h) => h[2].slice(0, n).reduce((a, b) => a + b, 0);
          path([...corners(held, upTo(k + 1)), ...corners(held, upTo(k)).reverse()]);
          pen.fillStyle = color(PARTS[part] ?? "--other");
          pen.globalAlpha = 0.75;
          pen.fill();
          pen.globalAlpha = 1;
        });
      }
      if (limit) {
        pen.strokeStyle = color("--limit");
        pen.setLineDash([5, 4]);
        path([[0, y(limit)], [width, y(limit)]]);
        pen.stroke();
        pen.setLineDash([]);
      }
      pen.fillStyle = color("--text");
      const each = sides.map(([side, held]) => `${bytes(held.reduce((a, h) => Math.max(a, sum(h)), 0))} ${side}`);
      pen.fillText(`${tier}: at most ${each.join(", ")}`, 2, top + 12);
    });
  }

  point(canvas, event) {
    const text = canvas === this.lanes ? this.activity(event) : this.holding(event);
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    tip.style.left = tip.style.top = "0";  // where its width is its own
    const [wide, tall] = [tip.offsetWidth, tip.offsetHeight];
    tip.style.left = Math.max(8, Math.min(event.clientX + 12, document.documentElement.clientWidth - wide - 8)) + "px";
    tip.style.top = (event.clientY + 16 + tall > innerHeight ? event.clientY - tall - 10 : event.clientY + 16) + "px";
  }

  activity(event) {
    const y = event.clientY - this.lanes.getBoundingClientRect().top, at = this.at(this.lanes, event);
    const row = this.rows.find((r) => y >= r.top - 1 && y < r.top + r.height + 1);
    const near = (this.view[1] - this.view[0]) / this.lanes.clientWidth * 2;  // what is drawn one pixel wide
    const found = row?.events.findLast((e) => e[2] <= at + near && at - near <= e[3]);
    if (!found) return "";
    return `${row.track}, ${row.side}: ${time(found[3] - found[2])} from ${time(found[2])} on\n${found[5]}`;
  }

  holding(event) {
    const at = this.at(this.held, event), y = event.clientY - this.held.getBoundingClientRect().top;
    const tier = this.tiers[Math.floor((y - AXIS) / PLOT)];
    const lines = [];
    for (const [side, s] of Object.entries(this.data.sides)) {
      const now = s.held.findLast((h) => h[1] === tier && h[0] <= at);
      if (!now) continue;
      const parts = s.parts.map((part, k) => `${part} ${bytes(now[2][k])}`).join(", ");
      lines.push(`${side}: ${s.parts.length > 1 ? parts : bytes(now[2][0])}`);
    }
    return lines.length ? [`${tier} at ${time(at)}`, ...lines].join("\n") : "";
  }
}

for (const root of document.querySelectorAll("[data-charts]"))
  new Charts(root, JSON.parse(document.getElementById("data-" + root.dataset.charts).textContent));
