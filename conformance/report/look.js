// Uses the page as a person would. Arguments: the browser, the page, a folder for screenshots.
const { chromium } = require("playwright-core");
const assert = require("node:assert/strict");
const [, , executablePath, file, shots] = process.argv;

const look = async (browser, scheme, width, height) => {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: scheme, hasTouch: width < 500 });
  const page = await context.newPage();
  const trouble = [];
  page.on("pageerror", (e) => trouble.push(e.message));
  page.on("console", (m) => { if (m.type() === "error") trouble.push(m.text()); });
  page.on("request", (r) => { if (!r.url().startsWith("file:")) trouble.push("asked for " + r.url()); });
  await page.goto("file://" + file);
  const shot = (name) => page.screenshot({ path: `${shots}/${scheme}-${width}-${name}.png` });
  const tabs = await page.locator("[role=tab]").all();
  assert.equal(tabs.length, 7);
  for (const tab of tabs) {
    await tab.click();
    const part = await tab.getAttribute("aria-controls");
    assert.equal(await page.locator("[role=tabpanel]:visible").count(), 1, "one part at a time");
    assert.ok(await page.locator("#" + part).isVisible());
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(wide <= 0, `${part} runs ${wide} pixels out of the window`);
    await page.waitForTimeout(150);
    await shot(part);
    if (part === "table" && width >= 1280) {
      const beyond = await page.locator(".of-table-1").evaluate((t) => t.scrollWidth - t.parentElement.clientWidth);
      assert.ok(beyond <= 0, `Table 1 is ${beyond} pixels wider than its frame`);
    }
    if (part === "moves") {
      const cut = await page.locator("#moves-canvas").getAttribute("data-cut");
      assert.equal(cut, "0", "every label of the picture is within it");
    }
  }
  // A part that is opened from far down begins below the bar of tabs, not behind it.
  await page.click("#tab-curves");
  await page.evaluate(() => scrollTo(0, document.body.scrollHeight));
  await page.click("#tab-transcripts");
  const below = await page.evaluate(() =>
    document.querySelector("#transcripts label").getBoundingClientRect().top - document.querySelector("nav").getBoundingClientRect().bottom);
  assert.ok(below >= 0, `the filters begin ${-below} pixels behind the tabs`);

  await page.locator("#tab-transcripts").press("ArrowLeft");
  assert.ok(await page.locator("#moves").isVisible(), "arrow keys change tabs");
  const canvas = page.locator("#moves-canvas");
  await page.waitForFunction(() => document.getElementById("moves-canvas").dataset.view);
  const view = () => page.waitForTimeout(80).then(() => canvas.getAttribute("data-view"));
  const drawn = () => canvas.evaluate((c) => c.toDataURL().length);
  const [before, picture] = [await view(), await drawn()];
  const box = await canvas.boundingBox();
  await page.mouse.move(box.x + box.width / 2, box.y + 60);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width / 2 + 90, box.y + 90, { steps: 4 });
  await page.mouse.up();
  const dragged = await view();
  assert.notEqual(dragged, before, "dragging turns the picture");
  assert.notEqual(await drawn(), picture, "and what is drawn");
  await canvas.press("ArrowRight");
  await canvas.press("+");
  assert.notEqual(await view(), dragged, "keys turn it too");
  await shot("moves-turned");
  const spheres = Number(await canvas.getAttribute("data-spheres"));
  await page.locator("#moves-until").fill("1");
  await view();
  assert.ok(Number(await canvas.getAttribute("data-spheres")) < spheres, "fewer episodes, fewer spheres");

  await page.click("#tab-transcripts");
  const count = async () => Number((await page.locator("#t-count").textContent()).split(" ")[0]);
  const all = await count();
  await page.selectOption("#t-won", "won");
  const won = await count();
  await page.selectOption("#t-won", "not");
  assert.equal(won + (await count()), all, "won and not won are all");
  await page.selectOption("#t-won", "");
  const seeds = await page.locator("#t-seed option").allTextContents();
  assert.ok(seeds.length > 2, "seeds can be told apart");
  await page.selectOption("#t-seed", seeds[1]);
  assert.ok((await count()) < all, "and chosen");
  await page.selectOption("#t-seed", "");
  await page.fill("#t-text", "no transcript says this");
  assert.equal(await count(), 0);
  await page.fill("#t-text", "");
  assert.equal(await count(), all);
  await page.locator("details.meta > summary").first().click();
  await page.locator(".episode .step").first().waitFor({ timeout: 10000 }); // a turn is shown
  await shot("transcript-open");
  assert.deepEqual(trouble, []);
  await context.close();
};

(async () => {
  const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
  try {
    await look(browser, "light", 1280, 900);
    await look(browser, "dark", 1280, 900);
    await look(browser, "light", 390, 844);
    console.log("the page works: tabs, turning, filters; light, dark and narrow");
  } finally {
    await browser.close();
  }
})().catch((e) => { console.error(e.message); process.exit(1); });
