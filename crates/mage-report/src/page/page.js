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

  // Tabs: one section is visible; the URL fragment stores which.
  const tabs = [...document.querySelectorAll("[role=tab]")];
  const show = (tab, focus) => {
    for (const t of tabs) {
      const selected = t === tab;
      t.setAttribute("aria-selected", selected);
      t.tabIndex = selected ? 0 : -1;
      by(t.getAttribute("aria-controls")).hidden = !selected;
    }
    if (focus) tab.focus();
    // The tab bar is sticky: scroll to the top of the section, so that the bar does not cover it.
    const bar = document.querySelector("nav"), top = document.querySelector("main").offsetTop - bar.offsetHeight;
    if (window.scrollY > top) window.scrollTo({ top });
    // Not during loading: the browser would scroll to the fragment, past the heading.
    if (document.readyState === "complete") try { history.replaceState(null, "", "#" + tab.getAttribute("aria-controls")); } catch { /* not permitted in some viewers */ }
    if (tab.id === "tab-actions") window.dispatchEvent(new Event("resize"));
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
  if (tabs.length) show(tabs.find((t) => "#" + t.getAttribute("aria-controls") === location.hash) || tabs[0], false);

  // States and actions: 3D scatter plot with rotation and zoom.
  const canvas = by("actions-canvas");
  if (canvas) {
    const context = canvas.getContext("2d");
    const result = by("actions-result"), until = by("actions-until"), untilText = by("actions-until-text"), info = by("actions-info");
    data.actions.forEach((r, i) => result.append(new Option(r.name, i)));
    let yaw = -0.65, pitch = 0.38, zoom = 1, scene = null, drawn = [], scheduled = false;
    const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
    const select = () => {
      const counts = data.actions[result.value].counts;
      const episodes = 1 + Math.max(...counts.points.map((p) => p[0]));
      until.max = episodes;
      until.value = episodes;
      const totals = {};
      for (const [e, , , n] of counts.points) totals[e] = (totals[e] || 0) + n;
      scene = { counts, episodes, totals, largest: Math.max(...counts.points.map(([e, , , n]) => n / totals[e])) };
      scheduleDraw();
    };
    const coordinate = (i, n) => (n > 1 ? (2 * i) / (n - 1) - 1 : 0);
    const rotate = (x, y, z) => {
      const [cy, sy, cp, sp] = [Math.cos(yaw), Math.sin(yaw), Math.cos(pitch), Math.sin(pitch)];
      const [a, b] = [cy * x + sy * z, -sy * x + cy * z];
      return [a, cp * y - sp * b, sp * y + cp * b];
    };
    const scheduleDraw = () => {
      if (scheduled) return;
      scheduled = true;
      requestAnimationFrame(() => { scheduled = false; draw(); });
    };
    const draw = () => {
      const box = canvas.getBoundingClientRect();
      if (!box.width || !scene) return;
      const pixelRatio = window.devicePixelRatio || 1;
      canvas.width = Math.round(box.width * pixelRatio);
      canvas.height = Math.round(box.height * pixelRatio);
      context.setTransform(pixelRatio, 0, 0, pixelRatio, 0, 0);
      context.clearRect(0, 0, box.width, box.height);
      // The box and its labels stay within the canvas at every rotation.
      const scale = Math.min(box.width / (box.width < 600 ? 4.8 : 4.2), box.height / 3.7) * zoom;
      const screen = (x, y, z) => {
        const [a, b, c] = rotate(x, y, z);
        const perspective = 1 / (1 - c * 0.14);
        return [box.width / 2 + a * scale * perspective, box.height / 2 - b * scale * perspective, c, perspective];
      };
      const line = (from, to, style) => {
        const [a, b] = [screen(...from), screen(...to)];
        context.strokeStyle = style;
        context.beginPath();
        context.moveTo(a[0], a[1]);
        context.lineTo(b[0], b[1]);
        context.stroke();
      };
      const { counts, episodes } = scene;
      let clipped = 0;
      const faint = colour("--line"), ink = colour("--faint"), strong = colour("--ink");
      context.lineWidth = 1;
      // Grid on the bottom, back and side of the box, with one line per episode.
      for (let e = 0; e < episodes; e++) {
        const x = coordinate(e, episodes);
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
        if (left < 0 || left + wide > box.width || b < 12 || b > box.height) clipped += 1;
        context.fillStyle = style;
        context.textAlign = align || "center";
        context.fillText(text, a, b);
      };
      context.font = "13px system-ui, sans-serif";
      const every = Math.ceil(episodes / 12);
      for (let e = 0; e < episodes; e += every) label(e + 1, coordinate(e, episodes), -1.12, 1.08, ink);
      label("episode", 0, -1.3, 1.2, strong);
      label("state", 1.2, -1.2, 0, strong);
      label(1, 1.12, -1.1, 1, ink);
      label(counts.states.length, 1.12, -1.1, -1, ink);
      // Every n-th action name, so that the labels do not overlap.
      const fit = Math.max(1, Math.floor((2 * scale) / 16)), step = Math.ceil(counts.actions.length / fit);
      counts.actions.forEach((name, a) => {
        const short = name.length > 20 ? name.slice(0, 19) + "…" : name;
        if (a % step === 0) label(short, -1.08, coordinate(a, counts.actions.length), 1.1, ink, "right");
      });
      label("action", -1.15, 1.22, 1.1, strong);
      drawn = [];
      for (const [e, s, a, n] of counts.points) {
        if (e >= until.value) continue;
        const [x, y, depth, perspective] =
          screen(coordinate(e, episodes), coordinate(a, counts.actions.length), -coordinate(s, counts.states.length));
        const fraction = n / scene.totals[e] / scene.largest;
        drawn.push({ x, y, depth, r: Math.max(1.6, scale * 0.085 * Math.cbrt(fraction) * perspective), e, s, a, n });
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
      canvas.dataset.clipped = clipped;
    };
    const showInfo = (x, y) => {
      const hit = drawn.findLast((p) => Math.hypot(p.x - x, p.y - y) <= Math.max(p.r, 5));
      const { counts, early_stop } = data.actions[result.value];
      const rest = counts.omitted ? `; ${counts.omitted} rarer steps are not drawn` : "";
      const stop = early_stop ? "; tasks stop after their first win, so later episodes cover only the tasks not yet won" : "";
      info.textContent = hit
        ? `Episode ${hit.e + 1}, state ${hit.s + 1}, action ${counts.actions[hit.a]}: ${hit.n} times — ${counts.states[hit.s].replace(/\s+/g, " ")}`
        : `${counts.points.filter((p) => p[0] < until.value).length} spheres, ${counts.states.length} states, ${counts.actions.length} actions${rest}${stop}.`;
    };
    const rotateBy = (right, up) => {
      yaw += right;
      pitch = Math.max(-1.5, Math.min(1.5, pitch + up));
      scheduleDraw();
    };
    const zoomBy = (factor) => { zoom = Math.max(0.4, Math.min(6, zoom * factor)); scheduleDraw(); };
    const pointers = new Map();
    canvas.addEventListener("pointerdown", (e) => {
      canvas.setPointerCapture(e.pointerId);
      pointers.set(e.pointerId, [e.clientX, e.clientY]);
    });
    canvas.addEventListener("pointermove", (e) => {
      const previous = pointers.get(e.pointerId);
      if (!previous) return showInfo(e.offsetX, e.offsetY);
      if (pointers.size === 1) rotateBy((e.clientX - previous[0]) * 0.008, (e.clientY - previous[1]) * 0.008);
      if (pointers.size === 2) {
        const [, other] = [...pointers].find(([id]) => id !== e.pointerId);
        const span = (p) => Math.hypot(p[0] - other[0], p[1] - other[1]) || 1;
        zoomBy(span([e.clientX, e.clientY]) / span(previous));
      }
      pointers.set(e.pointerId, [e.clientX, e.clientY]);
    });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (e) => pointers.delete(e.pointerId));
    canvas.addEventListener("wheel", (e) => { e.preventDefault(); zoomBy(Math.exp(-e.deltaY * 0.001)); }, { passive: false });
    canvas.addEventListener("keydown", (e) => {
      const keys = {
        ArrowLeft: () => rotateBy(-0.1, 0), ArrowRight: () => rotateBy(0.1, 0), ArrowUp: () => rotateBy(0, -0.1), ArrowDown: () => rotateBy(0, 0.1),
        "+": () => zoomBy(1.1), "=": () => zoomBy(1.1), "-": () => zoomBy(1 / 1.1),
      };
      if (!keys[e.key]) return;
      e.preventDefault();
      keys[e.key]();
    });
    result.addEventListener("change", () => { select(); requestAnimationFrame(() => showInfo(-99, -99)); });
    until.addEventListener("input", scheduleDraw);
    window.addEventListener("resize", scheduleDraw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", scheduleDraw);
    select();
    requestAnimationFrame(() => requestAnimationFrame(() => showInfo(-99, -99)));
  }

  // Transcripts: filters and full-text search.
  const list = by("t-list");
  if (list) {
    const PAGE = 20;
    const [taskSet, method, opponent, seed, won, text] = ["t-task-set", "t-method", "t-opponent", "t-seed", "t-won", "t-text"].map(by);
    const fill = (select, all, values) => {
      select.append(new Option(all, ""));
      [...new Set(values)].sort().forEach((v) => select.append(new Option(v, v)));
    };
    fill(taskSet, "all", data.transcripts.map((t) => t.task_set));
    fill(method, "all", data.transcripts.map((t) => t.transcript.method));
    fill(opponent, "all", data.transcripts.map((t) => t.transcript.opponent).filter((o) => o !== null));
    fill(seed, "all", data.transcripts.map((t) => t.transcript.seed).filter((s) => !s.includes("seed hash")));
    const searchText = data.transcripts.map((t) => JSON.stringify(t.transcript).toLowerCase());
    let shown = PAGE;
    const matches = (t, i) =>
      (!taskSet.value || t.task_set === taskSet.value) &&
      (!method.value || t.transcript.method === method.value) &&
      (!opponent.value || t.transcript.opponent === opponent.value) &&
      (!seed.value || t.transcript.seed === seed.value) &&
      (!won.value || t.won === (won.value === "won")) &&
      (!text.value || searchText[i].includes(JSON.stringify(text.value.toLowerCase()).slice(1, -1)));
    const appendText = (parent, label, content, className) => {
      if (content === null || content === "") return;
      parent.append(element("div", "label", label), element("pre", className, content));
    };
    const step = (s) => {
      const box = element("div", "step" + (s.kind === "play" ? "" : " memory"));
      appendText(box, s.kind === "play" ? "completion" : s.kind, s.completion);
      if (s.action !== null && s.action !== s.completion.trim()) appendText(box, "action", s.action);
      appendText(box, "invalid", s.invalid, "bad");
      appendText(box, "observation", s.observation);
      const prompt = element("details", "prompt");
      prompt.append(element("summary", "", "prompt"), element("pre", "", s.prompt));
      box.append(prompt);
      return box;
    };
    const body = (t) => {
      const all = document.createDocumentFragment();
      if (t.error) appendText(all, "failed", t.error, "bad");
      t.episodes.forEach((e, i) => {
        const box = element("div", "episode");
        const head = element("h4", "", `Episode ${i + 1}`);
        head.append(element("span", "badge " + e.ending, e.ending), element("small", "", `score ${+e.score.toFixed(3)}`));
        box.append(head);
        appendText(box, "first observation", e.start);
        e.steps.forEach((s) => box.append(step(s)));
        all.append(box);
      });
      return all;
    };
    const refresh = () => {
      const found = data.transcripts.filter(matches);
      by("t-count").textContent = `${found.length} of ${data.transcripts.length} transcripts`;
      list.replaceChildren(...found.slice(0, shown).map((t) => {
        const one = element("details", "meta"), head = element("summary");
        const { method, task, seed, opponent, seat, episodes } = t.transcript;
        head.append(element("b", "", method));
        head.append(element("span", "description", `${t.task_set} · task ${task} · ${seed}` + (opponent === null ? "" : ` · against ${opponent}, seat ${seat}`)));
        episodes.forEach((e) => head.append(element("span", "badge " + e.ending, e.ending)));
        one.append(head);
        one.addEventListener("toggle", () => { if (one.open && one.children.length === 1) one.append(body(t.transcript)); });
        return one;
      }));
      by("t-more").hidden = found.length <= shown;
    };
    for (const filter of [taskSet, method, opponent, seed, won, text]) {
      filter.addEventListener("input", () => { shown = PAGE; refresh(); });
    }
    by("t-more").addEventListener("click", () => { shown += PAGE; refresh(); });
    refresh();
  }
})();
