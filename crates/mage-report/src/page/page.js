"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const by = (id) => document.getElementById(id);
  const element = (name, className, text) => {
    const e = document.createElement(name);
    if (className) e.className = className;
    if (text !== undefined) e.textContent = text;
    return e;
  };

  // Tabs: one part at a time; the address remembers which.
  const tabs = [...document.querySelectorAll("[role=tab]")];
  const show = (tab, focus) => {
    for (const t of tabs) {
      const chosen = t === tab;
      t.setAttribute("aria-selected", chosen);
      t.tabIndex = chosen ? 0 : -1;
      by(t.getAttribute("aria-controls")).hidden = !chosen;
    }
    if (focus) tab.focus();
    // The bar of tabs stays in view: a part that was scrolled into begins below it again, not behind it.
    const bar = document.querySelector("nav"), top = document.querySelector("main").offsetTop - bar.offsetHeight;
    if (window.scrollY > top) window.scrollTo({ top });
    // Not while the page loads: it would be scrolled to the part, past its own heading.
    if (document.readyState === "complete") try { history.replaceState(null, "", "#" + tab.getAttribute("aria-controls")); } catch { /* some viewers forbid it */ }
    if (tab.id === "tab-moves") window.dispatchEvent(new Event("resize"));
  };
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => show(tab, false));
    tab.addEventListener("keydown", (e) => {
      const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: tabs.length - 1 }[e.key];
      if (to === undefined) return;
      e.preventDefault();
      show(tabs[(to + tabs.length) % tabs.length], true);
    });
  });
  show(tabs.find((t) => "#" + t.getAttribute("aria-controls") === location.hash) || tabs[0], false);

  // States and actions: spheres in a box, turned by hand.
  const canvas = by("moves-canvas");
  if (canvas) {
    const context = canvas.getContext("2d");
    const entry = by("moves-entry"), until = by("moves-until"), untilText = by("moves-until-text"), about = by("moves-about");
    data.moves.forEach((m, i) => entry.append(new Option(m.name, i)));
    let yaw = -0.65, pitch = 0.38, zoom = 1, scene = null, drawn = [], waiting = false;
    const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
    const choose = () => {
      const moves = data.moves[entry.value].moves;
      const episodes = 1 + Math.max(...moves.points.map((p) => p[0]));
      until.max = episodes;
      until.value = episodes;
      const most = {};
      for (const [e, , , n] of moves.points) most[e] = (most[e] || 0) + n;
      scene = { moves, episodes, most, largest: Math.max(...moves.points.map(([e, , , n]) => n / most[e])) };
      paint();
    };
    const place = (i, of) => (of > 1 ? (2 * i) / (of - 1) - 1 : 0);
    const turned = (x, y, z) => {
      const [cy, sy, cp, sp] = [Math.cos(yaw), Math.sin(yaw), Math.cos(pitch), Math.sin(pitch)];
      const [a, b] = [cy * x + sy * z, -sy * x + cy * z];
      return [a, cp * y - sp * b, sp * y + cp * b];
    };
    const paint = () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => { waiting = false; draw(); });
    };
    const draw = () => {
      const box = canvas.getBoundingClientRect();
      if (!box.width || !scene) return;
      const dots = window.devicePixelRatio || 1;
      canvas.width = Math.round(box.width * dots);
      canvas.height = Math.round(box.height * dots);
      context.setTransform(dots, 0, 0, dots, 0, 0);
      context.clearRect(0, 0, box.width, box.height);
      // The box turned any way, with its labels, stays within the window.
      const scale = Math.min(box.width / (box.width < 600 ? 4.8 : 4.2), box.height / 3.7) * zoom;
      const screen = (x, y, z) => {
        const [a, b, c] = turned(x, y, z);
        const near = 1 / (1 - c * 0.14);
        return [box.width / 2 + a * scale * near, box.height / 2 - b * scale * near, c, near];
      };
      const line = (from, to, style) => {
        const [a, b] = [screen(...from), screen(...to)];
        context.strokeStyle = style;
        context.beginPath();
        context.moveTo(a[0], a[1]);
        context.lineTo(b[0], b[1]);
        context.stroke();
      };
      const { moves, episodes } = scene;
      let cut = 0;
      const faint = colour("--line"), ink = colour("--faint"), strong = colour("--ink");
      context.lineWidth = 1;
      // Sheets at the bottom, at the back and at the side; one line an episode.
      for (let e = 0; e < episodes; e++) {
        const x = place(e, episodes);
        line([x, -1, -1], [x, -1, 1], faint);
        line([x, -1, -1], [x, 1, -1], faint);
      }
      for (const s of [-1, 0, 1]) {
        line([-1, s, -1], [1, s, -1], faint);
        line([-1, -1, s], [1, -1, s], faint);
        line([-1, s, -1], [-1, s, 1], faint);
        line([-1, -1, s], [-1, 1, s], faint);
      }
      line([-1, -1, 1], [1, -1, 1], ink);
      line([1, -1, -1], [1, -1, 1], ink);
      line([-1, -1, 1], [-1, 1, 1], ink);
      const label = (text, x, y, z, style, align) => {
        const [a, b] = screen(x, y, z), wide = context.measureText(text).width;
        const left = a - (align === "right" ? wide : wide / 2);
        if (left < 0 || left + wide > box.width || b < 12 || b > box.height) cut += 1;
        context.fillStyle = style;
        context.textAlign = align || "center";
        context.fillText(text, a, b);
      };
      context.font = "13px system-ui, sans-serif";
      const every = Math.ceil(episodes / 12);
      for (let e = 0; e < episodes; e += every) label(e + 1, place(e, episodes), -1.12, 1.08, ink);
      label("episode", 0, -1.3, 1.2, strong);
      label("state", 1.2, -1.2, 0, strong);
      label(1, 1.12, -1.1, 1, ink);
      label(moves.states.length, 1.12, -1.1, -1, ink);
      // As many names as there is room for: every one, or every second, third, …
      const room = Math.max(1, Math.floor((2 * scale) / 16)), step = Math.ceil(moves.actions.length / room);
      moves.actions.forEach((name, a) => {
        const short = name.length > 20 ? name.slice(0, 19) + "…" : name;
        if (a % step === 0) label(short, -1.08, place(a, moves.actions.length), 1.1, ink, "right");
      });
      label("action", -1.15, 1.22, 1.1, strong);
      drawn = [];
      for (const [e, s, a, n] of moves.points) {
        if (e >= until.value) continue;
        const [x, y, depth, near] = screen(place(e, episodes), place(a, moves.actions.length), -place(s, moves.states.length));
        const share = n / scene.most[e] / scene.largest;
        drawn.push({ x, y, depth, r: Math.max(1.6, scale * 0.085 * Math.cbrt(share) * near), e, s, a, n });
      }
      drawn.sort((p, q) => p.depth - q.depth);
      for (const p of drawn) {
        const hue = (p.a * 137.5 + 205) % 360;
        const light = context.createRadialGradient(p.x - p.r * 0.35, p.y - p.r * 0.35, p.r * 0.1, p.x, p.y, p.r);
        light.addColorStop(0, `hsl(${hue} 75% 78%)`);
        light.addColorStop(1, `hsl(${hue} 58% ${44 + 9 * p.depth}%)`);
        context.globalAlpha = 0.9;
        context.fillStyle = light;
        context.beginPath();
        context.arc(p.x, p.y, p.r, 0, 2 * Math.PI);
        context.fill();
      }
      context.globalAlpha = 1;
      untilText.textContent = `${until.value} of ${episodes}`;
      canvas.dataset.view = `${yaw.toFixed(3)} ${pitch.toFixed(3)} ${zoom.toFixed(3)}`;
      canvas.dataset.spheres = drawn.length;
      canvas.dataset.cut = cut;
    };
    const tell = (x, y) => {
      const hit = drawn.findLast((p) => Math.hypot(p.x - x, p.y - y) <= Math.max(p.r, 5));
      const m = data.moves[entry.value];
      const rest = m.moves.left_out ? `; ${m.moves.left_out} rarer turns are not drawn` : "";
      const stop = m.early_stop ? "; tasks stop at their first win, so later episodes are of those not yet won" : "";
      about.textContent = hit
        ? `Episode ${hit.e + 1}, state ${hit.s + 1}, action ${m.moves.actions[hit.a]}: ${hit.n} times — ${m.moves.states[hit.s].replace(/\s+/g, " ")}`
        : `${m.moves.points.filter((p) => p[0] < until.value).length} spheres, ${m.moves.states.length} states, ${m.moves.actions.length} actions${rest}${stop}.`;
    };
    const turn = (right, up) => {
      yaw += right;
      pitch = Math.max(-1.5, Math.min(1.5, pitch + up));
      paint();
    };
    const nearer = (by) => { zoom = Math.max(0.4, Math.min(6, zoom * by)); paint(); };
    const fingers = new Map();
    canvas.addEventListener("pointerdown", (e) => {
      canvas.setPointerCapture(e.pointerId);
      fingers.set(e.pointerId, [e.clientX, e.clientY]);
    });
    canvas.addEventListener("pointermove", (e) => {
      const was = fingers.get(e.pointerId);
      if (!was) return tell(e.offsetX, e.offsetY);
      if (fingers.size === 1) turn((e.clientX - was[0]) * 0.008, (e.clientY - was[1]) * 0.008);
      if (fingers.size === 2) {
        const [, other] = [...fingers].find(([id]) => id !== e.pointerId);
        const span = (p) => Math.hypot(p[0] - other[0], p[1] - other[1]) || 1;
        nearer(span([e.clientX, e.clientY]) / span(was));
      }
      fingers.set(e.pointerId, [e.clientX, e.clientY]);
    });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (e) => fingers.delete(e.pointerId));
    canvas.addEventListener("wheel", (e) => { e.preventDefault(); nearer(Math.exp(-e.deltaY * 0.001)); }, { passive: false });
    canvas.addEventListener("keydown", (e) => {
      const keys = {
        ArrowLeft: () => turn(-0.1, 0), ArrowRight: () => turn(0.1, 0), ArrowUp: () => turn(0, -0.1), ArrowDown: () => turn(0, 0.1),
        "+": () => nearer(1.1), "=": () => nearer(1.1), "-": () => nearer(1 / 1.1),
      };
      if (!keys[e.key]) return;
      e.preventDefault();
      keys[e.key]();
    });
    entry.addEventListener("change", () => { choose(); requestAnimationFrame(() => tell(-99, -99)); });
    until.addEventListener("input", paint);
    window.addEventListener("resize", paint);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
    choose();
    requestAnimationFrame(() => requestAnimationFrame(() => tell(-99, -99)));
  }

  // Transcripts: found by what they are and what they say.
  const list = by("t-list");
  if (list) {
    const PAGE = 20;
    const [panel, method, opponent, seed, won, text] = ["t-panel", "t-method", "t-opponent", "t-seed", "t-won", "t-text"].map(by);
    const fill = (select, every, values) => {
      select.append(new Option(every, ""));
      [...new Set(values)].sort().forEach((v) => select.append(new Option(v, v)));
    };
    fill(panel, "all", data.transcripts.map((t) => t.panel));
    fill(method, "all", data.transcripts.map((t) => t.transcript.of));
    fill(opponent, "all", data.transcripts.map((t) => t.transcript.opponent).filter((o) => o !== null));
    fill(seed, "all", data.transcripts.map((t) => t.transcript.seed).filter((s) => !s.includes("luck")));
    const words = data.transcripts.map((t) => JSON.stringify(t.transcript).toLowerCase());
    let shown = PAGE;
    const fits = (t, i) =>
      (!panel.value || t.panel === panel.value) &&
      (!method.value || t.transcript.of === method.value) &&
      (!opponent.value || t.transcript.opponent === opponent.value) &&
      (!seed.value || t.transcript.seed === seed.value) &&
      (!won.value || t.won === (won.value === "won")) &&
      (!text.value || words[i].includes(JSON.stringify(text.value.toLowerCase()).slice(1, -1)));
    const said = (parent, label, content, className) => {
      if (content === null || content === "") return;
      parent.append(element("div", "label", label), element("pre", className, content));
    };
    const step = (s) => {
      const box = element("div", "step" + (s.purpose === "play" ? "" : " own"));
      said(box, s.purpose === "play" ? "answer" : s.purpose, s.answer);
      if (s.action !== null && s.action !== s.answer.trim()) said(box, "does", s.action);
      said(box, "invalid", s.invalid, "bad");
      said(box, "sees", s.seen);
      const prompt = element("details", "prompt");
      prompt.append(element("summary", "", "prompt"), element("pre", "", s.prompt));
      box.append(prompt);
      return box;
    };
    const body = (t) => {
      const all = document.createDocumentFragment();
      if (t.error) said(all, "failed", t.error, "bad");
      t.episodes.forEach((e, i) => {
        const box = element("div", "episode");
        const head = element("h4", "", `Episode ${i + 1}`);
        head.append(element("span", "badge " + e.ending, e.ending), element("small", "", `score ${+e.score.toFixed(3)}`));
        box.append(head);
        said(box, "starts with", e.start);
        e.steps.forEach((s) => box.append(step(s)));
        all.append(box);
      });
      return all;
    };
    const refresh = () => {
      const found = data.transcripts.filter(fits);
      by("t-count").textContent = `${found.length} of ${data.transcripts.length} transcripts`;
      list.replaceChildren(...found.slice(0, shown).map((t) => {
        const one = element("details", "meta"), head = element("summary");
        const { of, task, seed, opponent, seat, episodes } = t.transcript;
        head.append(element("b", "", of));
        head.append(element("span", "who", `${t.panel} · task ${task} · ${seed}` + (opponent === null ? "" : ` · against ${opponent}, seat ${seat}`)));
        episodes.forEach((e) => head.append(element("span", "badge " + e.ending, e.ending)));
        one.append(head);
        one.addEventListener("toggle", () => { if (one.open && one.children.length === 1) one.append(body(t.transcript)); });
        return one;
      }));
      by("t-more").hidden = found.length <= shown;
    };
    for (const filter of [panel, method, opponent, seed, won, text]) {
      filter.addEventListener("input", () => { shown = PAGE; refresh(); });
    }
    by("t-more").addEventListener("click", () => { shown += PAGE; refresh(); });
    refresh();
  }
})();
