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

  // Tables: a click on a column header sorts its rows, first ascending. Cells without a value come last.
  const sortKey = (row, column) => {
    const text = row.cells[column].textContent.trim();
    const number = text.match(/^[≤≈<> ]*(-?[0-9]+(?:[.][0-9]+)?)/);
    return { text, rank: text === "—" ? 2 : number ? 0 : 1, number: number ? Number(number[1]) : 0 };
  };
  const compare = (a, b) => a.rank - b.rank || a.number - b.number || a.text.localeCompare(b.text, "en", { numeric: true });
  for (const table of document.querySelectorAll("table")) {
    const headers = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    headers.forEach((header, column) => {
      const button = element("button", "", header.textContent);
      button.type = "button";
      button.title = "sort";
      header.replaceChildren(button);
      button.addEventListener("click", () => {
        const descending = header.getAttribute("aria-sort") === "ascending";
        headers.forEach((h) => h.removeAttribute("aria-sort"));
        header.setAttribute("aria-sort", descending ? "descending" : "ascending");
        const rows = [...body.rows].map((row) => ({ row, key: sortKey(row, column) }));
        const last = (r) => r.key.rank === 2;
        rows.sort((a, b) => last(a) - last(b) || (descending ? compare(b.key, a.key) : compare(a.key, b.key)));
        body.append(...rows.map((r) => r.row));
      });
    });
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
        const { method, update, task, seed, opponent, seat, episodes } = t.transcript;
        head.append(element("b", "", method));
        const source = update === null ? t.task_set : `${t.task_set}, update ${update}`;
        head.append(element("span", "description", `${source} · task ${task} · ${seed}` + (opponent === null ? "" : ` · against ${opponent}, seat ${seat}`)));
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
