// Interactive test of the report page. Arguments: browser executable, page, folder for screenshots.
const { chromium } = require("playwright-core");
const assert = require("node:assert/strict");
const [, , executablePath, file, shots] = process.argv;

const testPage = async (browser, scheme, width, height) => {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: scheme, hasTouch: width < 500 });
  const page = await context.newPage();
  const errors = [];
  page.on("pageerror", (e) => errors.push(e.message));
  page.on("console", (m) => { if (m.type() === "error") errors.push(m.text()); });
  page.on("request", (r) => { if (!r.url().startsWith("file:")) errors.push("network request: " + r.url()); });
  await page.goto("file://" + file);
  const shot = (name, fullPage) => page.screenshot({ path: `${shots}/${scheme}-${width}-${name}.png`, fullPage });
  await shot("page", true);
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(overflow <= 0, `the page overflows the window by ${overflow} pixels`);

  // Every section has content, and its link leads to it, below the bar.
  const hash = () => page.evaluate(() => location.hash);
  const links = await page.locator("nav a").all();
  const sections = await page.locator("section").evaluateAll((all) => all.map((s) => s.id));
  assert.equal(links.length, sections.length);
  assert.equal(sections[0], "overview");
  assert.ok(sections.length >= 7, `only ${sections} have content`);
  for (const [i, link] of links.entries()) {
    const id = sections[i];
    assert.ok(await page.locator(`#${id} :is(figure, tbody tr, details)`).count(), `${id} is empty`);
    await link.click();
    assert.equal(await hash(), "#" + id);
    const [top, bar] = await page.evaluate((id) =>
      [document.querySelector(`#${id} h2`), document.querySelector("nav")].map((e) => e.getBoundingClientRect()).map((r, i) => i ? r.bottom : r.top), id);
    assert.ok(top >= bar && top < height, `the title of ${id} is at ${top}, the bar ends at ${bar}`);
    await shot(id);
  }
  // Back returns to the section before, and an address with a fragment leads to its figure.
  await page.goBack();
  assert.equal(await hash(), "#" + sections.at(-2));
  const figure = await page.locator("figure").last().getAttribute("id");
  await page.evaluate((id) => (location.hash = id), figure);
  await page.waitForFunction((id) => document.getElementById(id).getBoundingClientRect().top < innerHeight, figure);

  // Tables: a header sorts by mouse and keyboard, numbers as numbers.
  const table = page.locator("#overview table").last();
  const column = async (n) => table.locator(`tbody tr > :nth-child(${n + 1})`).allTextContents();
  const names = await table.locator("thead th").allTextContents();
  const [gain, source] = ["gain", "file"].map((name) => names.indexOf(name)), numbers = (cells) => cells.filter((c) => c !== "—").map(parseFloat);
  const header = table.locator("thead button").nth(gain);
  await header.click();
  const ascending = await column(gain);
  assert.deepEqual(numbers(ascending), numbers(ascending).toSorted((a, b) => a - b));
  assert.ok(new Set(numbers(ascending)).size > 1, "there is something to sort");
  assert.equal(await table.locator("thead th").nth(gain).getAttribute("aria-sort"), "ascending");
  await header.press("Enter");
  const descending = await column(gain);
  assert.deepEqual(numbers(descending), numbers(ascending).toReversed());
  assert.equal(descending.indexOf("—"), ascending.indexOf("—"), "missing values come last");
  await table.locator("thead button").nth(source).click();
  const files = await column(source);
  assert.deepEqual(files, files.toSorted((a, b) => a.localeCompare(b, "en", { numeric: true })));

  // Tables that are wider than their frame scroll by keyboard and show a shadow until the end.
  const wide = page.locator("#curves .scroll").first();
  const excess = await wide.evaluate((e) => e.scrollWidth - e.clientWidth);
  assert.ok(excess > 0, "the table of a task set is wide");
  await wide.scrollIntoViewIfNeeded();
  await shot("wide-start");
  await wide.press("ArrowRight");
  await page.waitForFunction((e) => e.scrollLeft > 0, await wide.elementHandle());
  await wide.evaluate((e) => (e.scrollLeft = e.scrollWidth));
  await shot("wide-end");
  if (width >= 1280) {
    const beyond = await page.locator(".of-table-1").evaluate((t) => t.scrollWidth - t.parentElement.clientWidth);
    assert.ok(beyond <= 0, `Table 1 is ${beyond} pixels wider than its frame`);
  }

  const count = async () => Number((await page.locator("#t-count").textContent()).split(" ")[0]);
  const all = await count();
  await page.selectOption("#t-won", "won");
  const won = await count();
  await page.selectOption("#t-won", "not");
  assert.equal(won + (await count()), all, "won and not won add up to all");
  await page.selectOption("#t-won", "");
  const seeds = await page.locator("#t-seed option").allTextContents();
  assert.ok(seeds.length > 2, "the seed filter lists all seeds");
  await page.selectOption("#t-seed", seeds[1]);
  assert.ok((await count()) < all, "the seed filter selects transcripts");
  await page.selectOption("#t-seed", "");
  await page.selectOption("#t-task-set", "training");
  const training = await page.locator("summary .description").allTextContents();
  assert.ok(training.length && training.every((t) => /training, update [0-9]+ /.test(t)), `updates: ${training[0]}`);
  await page.selectOption("#t-task-set", "");
  await page.fill("#t-text", "text that no transcript contains");
  assert.equal(await count(), 0);
  await page.fill("#t-text", "");
  assert.equal(await count(), all);
  await page.locator("details.meta > summary").first().click();
  await page.locator(".episode .step").first().waitFor({ timeout: 10000 }); // at least one turn
  await shot("transcript-open");
  assert.deepEqual(errors, []);
  await context.close();
};

(async () => {
  const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
  try {
    await testPage(browser, "light", 1300, 900);
    await testPage(browser, "dark", 1300, 900);
    await testPage(browser, "light", 400, 844);
    console.log("passed: navigation, sorting, scrolling, filters; light, dark and narrow");
  } finally {
    await browser.close();
  }
})().catch((e) => { console.error(e.message); process.exit(1); });
