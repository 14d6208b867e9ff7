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
  const shot = (name) => page.screenshot({ path: `${shots}/${scheme}-${width}-${name}.png` });
  const tabs = await page.locator("[role=tab]").all();
  assert.ok(tabs.length >= 5, `only ${tabs.length} sections have content`);
  for (const tab of tabs) {
    await tab.click();
    const part = await tab.getAttribute("aria-controls");
    assert.equal(await page.locator("[role=tabpanel]:visible").count(), 1, "exactly one tab panel is visible");
    assert.ok(await page.locator("#" + part).isVisible());
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(wide <= 0, `${part} overflows the window by ${wide} pixels`);
    await page.waitForTimeout(150);
    await shot(part);
    if (part === "table" && width >= 1280) {
      const beyond = await page.locator(".of-table-1").evaluate((t) => t.scrollWidth - t.parentElement.clientWidth);
      assert.ok(beyond <= 0, `Table 1 is ${beyond} pixels wider than its frame`);
    }
    if (part === "actions") {
      const clipped = await page.locator("#actions-canvas").getAttribute("data-clipped");
      assert.equal(clipped, "0", "all labels lie within the figure");
    }
  }
  // A tab opened while scrolled down starts below the tab bar, not behind it.
  await page.click("#tab-curves");
  await page.evaluate(() => scrollTo(0, document.body.scrollHeight));
  await page.click("#tab-transcripts");
  const below = await page.evaluate(() =>
    document.querySelector("#transcripts label").getBoundingClientRect().top - document.querySelector("nav").getBoundingClientRect().bottom);
  assert.ok(below >= 0, `the filters start ${-below} pixels behind the tab bar`);

  await page.locator("#tab-transcripts").press("ArrowLeft");
  assert.ok(await page.locator("#actions").isVisible(), "arrow keys change tabs");
  const canvas = page.locator("#actions-canvas");
  await page.waitForFunction(() => document.getElementById("actions-canvas").dataset.view);
  const view = () => page.waitForTimeout(80).then(() => canvas.getAttribute("data-view"));
  const drawn = () => canvas.evaluate((c) => c.toDataURL().length);
  const [before, picture] = [await view(), await drawn()];
  const box = await canvas.boundingBox();
  await page.mouse.move(box.x + box.width / 2, box.y + 60);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width / 2 + 90, box.y + 90, { steps: 4 });
  await page.mouse.up();
  const dragged = await view();
  assert.notEqual(dragged, before, "dragging rotates the figure");
  assert.notEqual(await drawn(), picture, "rotation redraws the figure");
  await canvas.press("ArrowRight");
  await canvas.press("+");
  assert.notEqual(await view(), dragged, "keys rotate the figure");
  await shot("actions-rotated");
  const spheres = Number(await canvas.getAttribute("data-spheres"));
  await page.locator("#actions-until").fill("1");
  await view();
  assert.ok(Number(await canvas.getAttribute("data-spheres")) < spheres, "fewer episodes show fewer spheres");

  await page.click("#tab-transcripts");
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
    await testPage(browser, "light", 1280, 900);
    await testPage(browser, "dark", 1280, 900);
    await testPage(browser, "light", 390, 844);
    console.log("passed: tabs, rotation, filters; light, dark and narrow");
  } finally {
    await browser.close();
  }
})().catch((e) => { console.error(e.message); process.exit(1); });
